//! Streams against the list of their values.

use proptest::prelude::*;

use super::pieces::{PIECE_BYTES, PIECES_MAX};
use super::*;

/// A value: its time, whether it begins a reading, its metric, and the bits of the number.
type Plain = (u32, bool, u32, u64);

fn key(number: u32) -> Key {
    Key::MIN.saturating_add(number)
}

/// Writes values, and checks that the memory is as the stream says.
fn written(values: &[Plain]) -> Stream {
    let (mut stream, mut offset, mut bytes) = (Stream::default(), 0, 0);
    for &(at, starts_reading, metric, bits) in values {
        offset = if starts_reading { at } else { offset };
        bytes += stream.push(offset, starts_reading, key(metric), f64::from_bits(bits));
    }
    assert_eq!((stream.bytes(), stream.copy().values()), (bytes, values.len()));
    stream
}

fn read(packed: &Packed) -> Vec<Plain> {
    let mut values = Vec::new();
    packed.each(|Arrived { value, offset, metric, starts_reading }| {
        values.push((offset, starts_reading, metric.get() - 1, value.to_bits()));
    });
    values
}

/// The bytes of a stream without the free ones of its last piece.
fn bytes_of(values: &[Plain]) -> usize {
    let stream = written(values);
    assert_eq!(read(&stream.copy()), values);
    stream.into_packed().to_bytes().len()
}

/// Readings of one value, `step_ms` apart, by their number.
fn regular(count: u32, step_ms: u32, value: impl Fn(u32) -> f64) -> Vec<Plain> {
    (0..count).map(|at| (1_234 + at * step_ms, true, 0, value(at).to_bits())).collect()
}

/// Numbers below `below` that look random.
fn noise(at: u32, below: u32) -> u32 {
    (u64::from(at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32 % below
}

#[test]
fn a_reading_takes_the_bytes_that_the_documentation_says() {
    let jittered = |ms| move |(at, value): (usize, Plain)| (value.0 + noise(at as u32, ms), value.1, value.2, value.3);
    let decimals = |at| f64::from(200 + noise(at, 40)) / 10.0;
    let sensor = regular(60, 59_980, decimals);
    assert!(bytes_of(&sensor) <= 11 + 6 + 58 * 2, "{}", bytes_of(&sensor));
    let early_or_late: Vec<_> = sensor.iter().copied().enumerate().map(jittered(50)).collect();
    assert!(bytes_of(&early_or_late) <= 11 + 6 + 58 * 2, "{}", bytes_of(&early_or_late));
    let late: Vec<_> = sensor.iter().copied().enumerate().map(jittered(900)).collect();
    assert!(bytes_of(&late) <= 11 + 6 + 58 * 3, "{}", bytes_of(&late));
    let switch = regular(60, 60_000, |at| f64::from(noise(at, 20) / 19));
    assert!(bytes_of(&switch) <= 11 + 6 + 58, "{}", bytes_of(&switch));
    let counter = regular(60, 60_000, |at| f64::from(at * 8_000 + noise(at, 190)));
    assert!(bytes_of(&counter) <= 11 + 7 + 58 * 4, "{}", bytes_of(&counter));
    let each_second = regular(3_600, 1_000, decimals);
    assert!(bytes_of(&each_second[..3_000]) <= 20 + 3_000 * 2, "{}", bytes_of(&each_second[..3_000]));
    let full_precision = regular(60, 60_000, |at| f64::from(noise(at, 1 << 30)) / 3.0);
    assert!(bytes_of(&full_precision) <= 60 * 11, "{}", bytes_of(&full_precision));
}

#[test]
fn further_values_of_a_reading_take_a_byte() {
    let reading = |at: u32| (0..10).map(move |metric| (at * 10_000, metric == 0, metric, f64::from(noise(at, 20))));
    let values: Vec<Plain> = (0..100)
        .flat_map(reading)
        .map(|(offset, starts_reading, metric, value)| (offset, starts_reading, metric, (value / 10.0).to_bits()))
        .collect();
    assert!(bytes_of(&values) <= 100 * (10 + 1) + 120, "{}", bytes_of(&values));
}

/// Patterns that no prediction fits take less than the sixteen bytes that a plain value would take.
#[test]
fn a_hostile_pattern_takes_little_more_than_plain_values() {
    let alternating = |at: u32| (at % 2 * 3_599_999, true, 0, f64::from(at).to_bits());
    let random = |at: u32| {
        let bits = u64::from(noise(at, u32::MAX)) << 32 | u64::from(noise(at + 7, u32::MAX));
        (noise(at, 3_600_000), true, noise(at + 3, 5_000), bits)
    };
    let rescaled = |at: u32| {
        let value: f64 = if at.is_multiple_of(2) { 1e15 } else { 0.000_000_001 };
        (at, true, 0, value.to_bits())
    };
    let each_metric_once = |at: u32| (0, at == 0, at, 0.1_f64.to_bits());
    let patterns: [&dyn Fn(u32) -> Plain; 4] = [&alternating, &random, &rescaled, &each_metric_once];
    for (nth, pattern) in patterns.into_iter().enumerate() {
        let values: Vec<Plain> = (0..5_000).map(pattern).collect();
        let stream = written(&values);
        assert_eq!(read(&stream.copy()), values);
        assert!(stream.bytes() <= 5_000 * 20 + SERIES_MAX * 24, "pattern {nth}: {}", stream.bytes() / 5_000);
    }
}

#[test]
fn a_copy_shares_what_is_sealed_and_does_not_change() {
    let values = regular(12_000, 271, f64::from);
    let mut stream = Stream::default();
    let mut copies = Vec::new();
    for (at, &(offset, _, metric, bits)) in values.iter().enumerate() {
        if at % 997 == 0 {
            copies.push((at, stream.copy()));
        }
        stream.push(offset, true, key(metric), f64::from_bits(bits));
        assert!(stream.pieces() <= usize::from(PIECES_MAX));
    }
    assert!(stream.bytes() > 10 * usize::from(PIECES_MAX) * PIECE_BYTES, "most of it is sealed");
    for (at, copy) in copies {
        assert_eq!((copy.values(), read(&copy)), (at, values[..at].to_vec()));
    }
    assert_eq!(read(&stream.into_packed()), values);
}

fn any_value() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (-3_000..3_000i32).prop_map(|tenths| (f64::from(tenths) / 10.0).to_bits()),
        2 => (any::<i64>(), 0..12u32).prop_map(|(integer, power)| (integer as f64 / f64::from(power).exp()).to_bits()),
        1 => any::<u64>(),
        1 => prop::sample::select(vec![0.0, -0.0, f64::MAX, f64::MIN_POSITIVE, 1e15, 9_007_199_254_740_993.0])
            .prop_map(f64::to_bits),
    ]
}

/// Times of readings: most of them a step after the last one.
fn any_times() -> impl Strategy<Value = Vec<u32>> {
    let step = prop_oneof![Just(60_000), Just(1_000), Just(10), 1..100_000u32];
    let early_or_late = prop_oneof![6 => -100..100i32, 3 => -3_000..3_000i32, 1 => -3_600_000..3_600_000i32];
    (step, prop::collection::vec(early_or_late, 0..400)).prop_map(|(step, differences)| {
        let time = |(at, difference): (usize, i32)| {
            (at as i64 * i64::from(step) + i64::from(difference)).rem_euclid(3_600_000) as u32
        };
        differences.into_iter().enumerate().map(time).collect()
    })
}

proptest! {
    #[test]
    fn values_come_back_bit_by_bit_in_the_order_of_their_arrival(
        times in any_times(),
        shapes in prop::collection::vec(prop::collection::vec(prop_oneof![9 => 0..6u32, 1 => 0..2_000u32], 1..9), 1..4),
        bits in prop::collection::vec(any_value(), 1..200),
    ) {
        let mut bits = bits.iter().cycle();
        let mut values = Vec::new();
        for (at, time) in times.into_iter().enumerate() {
            for (nth, metric) in shapes[at % shapes.len()].iter().enumerate() {
                values.push((time, nth == 0, *metric, *bits.next().unwrap()));
            }
        }
        let stream = written(&values);
        prop_assert_eq!(read(&stream.copy()), values.clone());
        prop_assert_eq!(read(&stream.into_packed()), values);
    }

    #[test]
    fn the_table_of_series_is_limited(metrics in prop::collection::vec(0..3_000u32, 1..3_000)) {
        let values: Vec<Plain> = metrics.iter().map(|&metric| (5, true, metric, 1.5_f64.to_bits())).collect();
        let stream = written(&values);
        prop_assert_eq!(read(&stream.copy()), values.clone());
        let table = SERIES_MAX * size_of::<Series>();
        prop_assert!(stream.bytes() <= table + (values.len() * TOKEN_BYTES_MAX).next_multiple_of(PIECE_BYTES) * 5 / 4);
    }
}
