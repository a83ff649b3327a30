use proptest::prelude::*;

use super::*;
use crate::codec::ChunkError;
use crate::codec::fuzz::{same_bits, samples_of};
use crate::model::Sample;

fn sample(offset: u32, metric: u32, value: f64) -> Sample {
    Sample { value, offset, metric }
}

fn encode(samples: &[Sample]) -> Vec<u8> {
    let mut bytes = Vec::new();
    BlockEncoder::default().encode(samples, &mut bytes);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Vec<Sample>, ChunkError> {
    let mut samples = Vec::new();
    for block in Blocks::new(bytes) {
        samples.extend(samples_of(&block?));
    }
    Ok(samples)
}

#[track_caller]
fn assert_round_trip(samples: &[Sample]) -> Vec<u8> {
    let bytes = encode(samples);
    let decoded = decode(&bytes).unwrap();
    assert!(same_bits(&decoded, samples), "{samples:?} became {decoded:?}");
    bytes
}

fn series(values: impl IntoIterator<Item = f64>, step_ms: u32) -> Vec<Sample> {
    (0..).map(|at| at * step_ms).zip(values).map(|(offset, value)| sample(offset, 7, value)).collect()
}

/// Blocks are stored, so their bytes stay what they are.
#[test]
fn blocks_are_these_bytes() {
    let samples = series([20.5, 20.5, 20.75, 20.5], 60_000);
    let bytes = [
        1,
        7,
        6, // one series, number 7, four times of its own
        0,
        0,
        0xc0,
        0xa9,
        0x07, // 0, and each next one 60,000 later
        2,
        0x40 + 5,
        0x9e,
        0x20,
        0, // two decimals, 5 bits around the line of 2063 and a step of 0
        0x39,
        0xe3,
        0x0c, // -13, -13, 12, -13
    ];
    assert_eq!(encode(&samples), bytes);
    assert_eq!(decode(&bytes), Ok(samples));
}

#[test]
fn doubles_keep_their_bits() {
    let odd = [
        -0.0,
        0.0,
        f64::NAN,
        -f64::NAN,
        f64::from_bits(0x7ff0_dead_beef_0001),
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::MIN_POSITIVE,
        f64::from_bits(1),
        f64::MAX,
        f64::MIN,
        0.1 + 0.2,
        1e23,
        9_007_199_254_740_993.0,
        -1.5,
    ];
    assert_round_trip(&series(odd, 1_000));
    for one in odd {
        assert_round_trip(&series([one], 1));
        let mut hour = vec![21.5; 60];
        hour[17] = one;
        let bytes = assert_round_trip(&series(hour, 60_000));
        assert!(bytes.len() < 40, "one odd value does not spoil the others: {one} takes {}", bytes.len());
    }
}

#[test]
fn usual_series_take_few_bytes() {
    let bytes = |values: &mut dyn FnMut(u32) -> f64| assert_round_trip(&series((0..60).map(values), 60_000)).len();
    let mut dice = 1_u32;
    let mut random = |below: u32| {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (dice >> 16) % below
    };
    assert!(bytes(&mut |_| 21.5) <= 16, "constant");
    assert!(bytes(&mut |at| f64::from(at) * 250.0) <= 16, "a regular counter");
    assert!(bytes(&mut |at| f64::from(u8::from((20..45).contains(&at)))) <= 20, "a switch");
    let mut level = 215;
    let mut walk = |_| {
        level = level + random(7) - 3;
        f64::from(level) / 10.0
    };
    assert!(bytes(&mut walk) <= 39, "one decimal: 3 bits a value");
    assert!(bytes(&mut |at| f64::from((f64::from(at) / 7.0).sin() as f32)) <= 60 * 4 + 30, "single precision");
    assert!(bytes(&mut |at| (f64::from(at) / 7.0).sin()) <= 60 * 8 + 20, "every digit");
}

#[test]
fn series_with_the_same_times_share_them() {
    let times: Vec<u32> = (0..60).map(|at| at * 60_000 + at * at % 700).collect();
    let of = |metrics: u32| {
        let samples = times.iter().flat_map(|time| (0..metrics).map(|metric| sample(*time, metric, 1.0)));
        assert_round_trip(&samples.collect::<Vec<_>>()).len()
    };
    assert!(of(3) - of(1) <= 2 * 6, "{} and {}", of(1), of(3));
}

#[test]
fn long_hours_become_several_blocks() {
    let samples: Vec<_> = (0..5_000).map(|at| sample(at * 720, at % 3, f64::from(at % 10))).collect();
    let bytes = assert_round_trip(&samples);
    assert_eq!(Blocks::new(&bytes).count(), 5_000_usize.div_ceil(BLOCK_INSTANTS));
    assert_eq!(decode(&[]), Ok(Vec::new()));
    let twice = [encode(&samples[..10]), encode(&samples[10..20])].concat();
    assert_eq!(decode(&twice), Ok(samples[..20].to_vec()));
}

#[test]
fn bytes_that_are_not_blocks_are_refused() {
    let column = [0, 0, 0, 0]; // no decimals, residuals of no bits, 0 and 0
    let refused = |parts: &[&[u8]]| decode(&parts.concat()).unwrap_err();
    let invalid = |parts: &[&[u8]]| matches!(refused(parts), ChunkError::Invalid(_));
    assert!(decode(&[&[1, 7, 0, 0, 0, 0][..], &column].concat()).is_ok(), "the least block");
    assert!(invalid(&[&[0]]), "no series");
    assert!(invalid(&[&[9, 7, 0]]), "more series than bytes");
    assert!(invalid(&[&[2, 7, 0, 0, 0, 0], &column, &[0, 1], &column]), "a series twice");
    assert!(invalid(&[&[2, 7, 0, 0, 0, 0], &column, &[1, 3], &column]), "the times of itself");
    assert!(invalid(&[&[1, 7, 1], &column]), "the times of no series");
    assert!(invalid(&[&[1, 7, 0x80, 0x08, 0, 0, 2], &column]), "513 values");
    assert!(invalid(&[&[1, 7, 2, 0, 0, 0], &column]), "an instant twice");
    assert!(invalid(&[&[1, 7, 0, 0, 1, 0], &column]), "an instant before the hour");
    assert!(invalid(&[&[1, 7, 0, 0, 0x80, 0xba, 0xb7, 0x03, 0], &column]), "an instant after the hour");
    assert!(invalid(&[&[1, 7, 0, 0, 0, 0, 15, 0, 0, 0]]), "an unknown scale");
    assert!(invalid(&[&[1, 7, 0, 0, 0, 0, 0x80, 1, 1], &[0; 12]]), "a raw value beyond the column");
    assert!(invalid(&[&[1, 7, 0, 0x80, 0, 0, 1, 1, 0], &column]), "a patch beyond the column");
    let overlong = [&[0xff; 9][..], &[2]].concat();
    assert!(invalid(&[&overlong]), "a number of 65 bits");
    assert_eq!(refused(&[&[1, 7, 0, 9, 0, 0, 0]]), ChunkError::Truncated);
    assert_eq!(refused(&[&[1, 7, 0, 0, 0, 0, 0x80], &overlong]), refused(&[&overlong]));
    assert_eq!(
        refused(&[&[1, 7, 0, 0, 0, 0, 0x80, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0]]),
        ChunkError::Truncated,
        "no memory for what is only claimed"
    );
}

/// Values of the kinds that the columns know, in runs.
fn any_values() -> impl Strategy<Value = Vec<f64>> {
    let decimals = (0..16_i32, -100_000..100_000_i64).prop_map(|(digits, number)| number as f64 / 10_f64.powi(digits));
    let value = prop_oneof![
        4 => decimals,
        2 => (-30..30_i32).prop_map(|tenths| f64::from(tenths) / 10.0),
        1 => any::<u64>().prop_map(f64::from_bits),
        1 => any::<f32>().prop_map(f64::from),
        1 => any::<i64>().prop_map(|integer| integer as f64),
    ];
    let runs = prop::collection::vec((value, 1..40_usize, -3..4_i32), 1..12);
    runs.prop_map(|runs| {
        let values = |(first, count, step): (f64, usize, i32)| {
            (0..count).map(move |at| if step == 0 { first } else { first + f64::from(step) * at as f64 / 10.0 })
        };
        runs.into_iter().flat_map(values).collect()
    })
}

fn any_samples() -> impl Strategy<Value = Vec<Sample>> {
    let times = prop_oneof![Just(1), Just(60_000), 1..5_000_u32];
    (prop::collection::vec((any_values(), times, 0..900_u32, any::<u32>()), 1..5)).prop_map(|series| {
        let mut samples = Vec::new();
        for (values, step, jitter, metric) in series {
            let offset =
                |at: usize| at as u32 * step + (at as u32).wrapping_mul(2_654_435_761) % (jitter.min(step - 1) + 1);
            let with_times = values.into_iter().enumerate().map(|(at, value)| sample(offset(at), metric, value));
            samples.extend(with_times.take_while(|sample| sample.offset < 3_600_000));
        }
        samples.sort_by_key(Sample::key);
        samples.dedup_by_key(|sample| sample.key());
        samples
    })
}

proptest! {
    #[test]
    fn samples_are_decoded_as_they_were_encoded(samples in any_samples()) {
        let decoded = decode(&encode(&samples)).unwrap();
        prop_assert!(same_bits(&decoded, &samples));
    }

    #[test]
    fn damaged_blocks_never_panic(samples in any_samples(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = encode(&samples);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        crate::codec::fuzz::blocks(&bytes);
        crate::codec::fuzz::blocks(&bytes[..at]);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        crate::codec::fuzz::blocks(&bytes);
    }
}
