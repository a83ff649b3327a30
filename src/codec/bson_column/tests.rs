use proptest::prelude::*;

use super::*;
use crate::codec::ChunkError;
use crate::codec::fuzz::bson_column;

const HOUR_MS: i64 = 1_776_693_600_000;

fn encode_dates(dates: &[i64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    ColumnEncoder::new().dates(dates.iter().copied(), &mut bytes);
    bytes
}

fn encode_doubles(values: &[Option<f64>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    ColumnEncoder::new().doubles(values.iter().copied(), &mut bytes);
    bytes
}

fn dates(bytes: &[u8]) -> Result<Vec<Option<i64>>, ChunkError> {
    Dates::new(bytes).collect()
}

fn doubles(bytes: &[u8]) -> Result<Vec<Option<f64>>, ChunkError> {
    Doubles::new(bytes).collect()
}

fn bits(values: &[Option<f64>]) -> Vec<Option<u64>> {
    values.iter().map(|value| value.map(f64::to_bits)).collect()
}

/// A column of doubles that begins with a literal.
fn column(first: f64, rest: &[&[u8]]) -> Vec<u8> {
    [&[DOUBLE, 0][..], &first.to_le_bytes(), &rest.concat(), &[END]].concat()
}

/// Increments in one word.
fn increments(mode: u8, selector: u64, slots: u64) -> Vec<u8> {
    [&[mode << 4][..], &(selector | slots << 4).to_le_bytes()].concat()
}

#[test]
fn a_grid_and_its_values_are_these_bytes() {
    let grid: Vec<i64> = (0..4).map(|at| HOUR_MS + at * 60_000).collect();
    let literal = [&[DATE, 0][..], &HOUR_MS.to_le_bytes()].concat();
    assert_eq!(encode_dates(&grid), [&literal[..], &increments(8, 12, 2 * 60_000), &[END]].concat());
    let values = [Some(20.5), None, Some(20.4), Some(20.6)];
    assert_eq!(encode_doubles(&values), column(20.5, &[&increments(10, 12, 0xf_ffff | 0x1 << 20 | 0x4 << 40)]));
}

/// These are the values that a server of version 6.0.5 reads.
#[test]
fn columns_mean_what_they_mean_to_a_server() {
    let tenths = |rest: &[&[u8]]| doubles(&column(1.5, rest)).unwrap();
    for (mode, next) in [(8, 1.5 + f64::EPSILON), (10, 1.6), (11, 1.51), (12, 1.5001), (13, 1.500_000_01)] {
        assert_eq!(tenths(&[&increments(mode, 14, 2)]), [Some(1.5), Some(next)], "{mode}");
    }
    let missing = increments(8, 14, u64::MAX >> 4);
    let first_missing = [&missing[..], &[DOUBLE, 0], &1.5_f64.to_le_bytes(), &increments(10, 14, 2), &[END]].concat();
    assert_eq!(doubles(&first_missing), Ok(vec![None, Some(1.5), Some(1.6)]));
    let zero = [DOUBLE, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let of_word = |word: u64| {
        let column = [&zero[..], &[0x90], &word.to_le_bytes(), &zero, &[END]].concat();
        let mut values = doubles(&column).unwrap();
        assert_eq!((values.remove(0), values.pop()), (Some(0.0), Some(Some(0.0))));
        values
    };
    let second = |selector: u64, variant: u64, slots: u64| {
        let values = of_word(selector | variant << 4 | slots << 8);
        (values.len(), values[0])
    };
    let counts = |selector, variants: std::ops::Range<u64>| -> Vec<usize> {
        variants.map(|variant| second(selector, variant, 0).0).collect()
    };
    assert_eq!(counts(7, 0..10), [8, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(counts(8, 0..14), [7, 7, 6, 5, 4, 3, 2, 1, 6, 5, 4, 3, 2, 1]);
    assert_eq!(second(7, 1, 0b10_0000), (9, Some(1.0)), "the value is after the count");
    assert_eq!(second(7, 1, 0b10_0001), (9, Some(2.0)), "one trailing zero");
    assert_eq!(second(8, 1, 0b0010_0001), (7, Some(16.0)), "four trailing zeros");
    assert_eq!(second(8, 8, 0b0010_00001), (6, Some(16.0)), "four trailing zeros, in five bits");
    assert_eq!(second(7, 1, 0b11_0000).1, Some(-2.0), "all bits of the value alone are a value");
    assert_eq!(second(7, 1, 0b11_1111).1, None, "all bits of the slot are a missing value");
    let repeated = [increments(9, 14, 6), increments(9, 15, 1)].concat();
    assert_eq!(doubles(&column(0.0, &[&repeated])).unwrap().len(), 1 + 1 + 240);
    assert_eq!(doubles(&column(0.0, &[&repeated])).unwrap().last(), Some(&Some(3.0 * 241.0)));
    let dates_after_a_literal = [
        &[DATE, 0][..],
        &5_i64.to_le_bytes(),
        &increments(8, 13, 0x7d0 | 0x3 << 30),
        &[DATE, 0],
        &9_000_i64.to_le_bytes(),
        &increments(8, 14, 2),
        &[END],
    ];
    let expected = [5, 1_005, 2_003, 9_000, 9_001].map(Some).to_vec();
    assert_eq!(dates(&dates_after_a_literal.concat()), Ok(expected));
}

#[test]
fn usual_columns_take_few_bytes() {
    let grid: Vec<i64> = (0..360).map(|at| HOUR_MS + at * 10_000).collect();
    assert!(encode_dates(&grid).len() <= 70);
    assert!(encode_doubles(&[Some(21.5); 360]).len() <= 70);
    assert_eq!(encode_doubles(&[None; 3]).len(), 1 + 8 + 1);
    assert_eq!(encode_doubles(&[]), [END]);
}

/// The product is 4450430120000000.5 as a double: a server rounds it up, to another double.
#[test]
fn doubles_whose_product_is_no_integer_are_not_scaled() {
    let close = [Some(44_504_301.2), Some(44_504_301.3), Some(44_504_301.204_3)];
    let bytes = encode_doubles(&close);
    assert_eq!(doubles(&bytes).unwrap(), close);
    assert_ne!(bytes[10] >> 4, 13, "not times 10^8");
}

#[test]
fn bytes_that_are_no_column_are_refused() {
    let invalid = |bytes: &[u8]| matches!(doubles(bytes), Err(ChunkError::Invalid(_)));
    assert_eq!(doubles(&[]), Err(ChunkError::Truncated));
    assert_eq!(doubles(&column(1.0, &[&[0x80, 1]])[..12]), Err(ChunkError::Truncated));
    assert!(invalid(&[END, 0]), "a byte too many");
    assert!(invalid(&encode_dates(&[HOUR_MS])), "dates");
    assert!(invalid(&[DOUBLE, b'a', 0, 0, 0, 0, 0, 0, 0, 0, 0]), "a name");
    for mode in (0..8).chain(14..16) {
        assert!(invalid(&column(1.0, &[&increments(mode, 1, 0)])), "mode {mode}");
    }
    let in_mode_9 = [&[DATE, 0][..], &[0; 8], &increments(9, 14, 0), &[END]].concat();
    assert!(dates(&in_mode_9).is_err(), "a scale of dates");
    assert!(invalid(&column(1.0, &[&increments(8, 0, 0)])), "selector 0");
    assert!(invalid(&column(1.0, &[&increments(8, 7, 10)])), "an unknown variant");
    assert!(invalid(&column(1.25, &[&increments(10, 14, 0)])), "a double that is not exact at the scale");
    assert!(invalid(&column(-0.0, &[&increments(9, 14, 0)])), "minus zero is not exact");
    assert_eq!(Doubles::new(&[END, 0]).count(), 1, "nothing follows an error");
}

fn any_doubles() -> impl Strategy<Value = Vec<Option<f64>>> {
    let value = prop_oneof![
        6 => (0..9_i32, -2_000..2_000_i32).prop_map(|(digits, number)| Some(f64::from(number) / 10_f64.powi(digits))),
        6 => (-20..20_i32).prop_map(|tenths| Some(f64::from(tenths) / 10.0)),
        2 => Just(None),
        1 => any::<u64>().prop_map(|bits| Some(f64::from_bits(bits))),
    ];
    prop::collection::vec((value, prop_oneof![9 => 1..4_usize, 1 => 100..500_usize]), 0..60)
        .prop_map(|runs| runs.into_iter().flat_map(|(value, count)| std::iter::repeat_n(value, count)).collect())
}

fn any_dates() -> impl Strategy<Value = Vec<i64>> {
    let step = prop_oneof![5 => Just(60_000), 3 => 1..10_000_i64, 1 => any::<i64>()];
    prop::collection::vec((step, 1..150_usize), 0..20).prop_map(|runs| {
        let steps = runs.into_iter().flat_map(|(step, count)| std::iter::repeat_n(step, count));
        steps
            .scan(HOUR_MS, |date, step| {
                *date = date.wrapping_add(step);
                Some(*date)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn doubles_are_decoded_as_they_were_encoded(values in any_doubles()) {
        prop_assert_eq!(bits(&doubles(&encode_doubles(&values)).unwrap()), bits(&values));
    }

    #[test]
    fn dates_are_decoded_as_they_were_encoded(values in any_dates()) {
        let decoded = dates(&encode_dates(&values)).unwrap();
        prop_assert_eq!(decoded, values.into_iter().map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn damaged_columns_never_panic(values in any_doubles(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = encode_doubles(&values);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bson_column(&bytes);
        bson_column(&bytes[..at]);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        bson_column(&bytes);
    }
}
