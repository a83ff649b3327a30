//! The bytes and the processor time of a reading in each codec:
//! `cargo bench --features bench --bench codec`.
//!
//! Hours of one series on a grid, 60 or 360 readings each. Blocks and columns of MongoDB include the times;
//! `pco`, a general codec for columns of numbers, has the values only. `machine_temperature.txt` has the
//! first 720 values of `realKnownCause/machine_temperature_system_failure` of the Numenta anomaly benchmark.

use std::hint::black_box;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegauge::codec::bson_column::{ColumnEncoder, Dates, Doubles};
use tidegauge::codec::{BlockEncoder, Blocks};
use tidegauge::model::Sample;

const HOUR_MS: i64 = 3_600_000;

/// Values of each kind: a multiple of both lengths of an hour.
const VALUES: usize = 72_000;

/// The bytes and the processor time of all values.
#[derive(Default)]
struct Cost {
    bytes: usize,
    encode: Duration,
    decode: Duration,
}

fn main() {
    println!("`{}`\n", std::env::args().collect::<Vec<_>>().join(" "));
    println!("| values | readings an hour | blocks | encode | decode | BSONColumn | encode | decode | pco | encode |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (name, values) in kinds() {
        for readings in [60, 360] {
            let costs: [Cost; 3] = [blocks, columns, pco].map(|codec| codec(&values, readings));
            let of = |cost: Duration| cost.as_nanos() as f64 / VALUES as f64;
            let text = |cost: &Cost| {
                let bytes = cost.bytes as f64 / VALUES as f64;
                format!("{bytes:.2} B | {:.0} ns | {:.0} ns", of(cost.encode), of(cost.decode))
            };
            let [blocks, columns, pco] = costs.each_ref().map(text);
            println!("| {name} | {readings} | {blocks} | {columns} | {} |", pco.rsplit_once(" | ").expect("columns").0);
        }
    }
}

fn kinds() -> [(&'static str, Vec<f64>); 5] {
    let mut dice = StdRng::seed_from_u64(1);
    let (mut level, mut count, mut is_on) = (2_150, 0, false);
    let sensor = (0..VALUES).map(|_| {
        level += dice.random_range(-3..=3);
        f64::from(level) / 10.0
    });
    let sensor = sensor.collect();
    let counter = (0..VALUES).map(|_| {
        count += dice.random_range(100..120);
        f64::from(count)
    });
    let counter = counter.collect();
    let switch = (0..VALUES).map(|_| {
        is_on ^= dice.random_range(0..40) == 0;
        f64::from(u8::from(is_on))
    });
    let switch = switch.collect();
    let noise = (0..VALUES).map(|_| dice.random_range(20.0..21.0)).collect();
    let real = include_str!("machine_temperature.txt").lines().map(|line| line.parse().expect("a number"));
    let real = real.collect::<Vec<_>>().repeat(VALUES / 720);
    [
        ("sensor with one decimal", sensor),
        ("counter", counter),
        ("slow switch", switch),
        ("noise of full precision", noise),
        ("machine temperature", real),
    ]
}

fn blocks(values: &[f64], readings: usize) -> Cost {
    let (mut cost, mut encoder, mut bytes, mut decoded) =
        (Cost::default(), BlockEncoder::default(), Vec::new(), Vec::new());
    for hour in values.chunks(readings) {
        let offset = |at: usize| (at * (HOUR_MS as usize / readings)) as u32;
        let sample = |(at, value): (usize, &f64)| Sample { value: *value, offset: offset(at), metric: 1 };
        let samples: Vec<_> = hour.iter().enumerate().map(sample).collect();
        bytes.clear();
        cost.encode += timed(|| encoder.encode(black_box(&samples), &mut bytes));
        decoded.clear();
        cost.decode += timed(|| {
            for block in Blocks::new(black_box(&bytes)) {
                for series in block.expect("a block").series() {
                    let metric = series.metric();
                    decoded.extend(series.samples().map(|(offset, value)| Sample { value, offset, metric }));
                }
            }
        });
        assert_eq!(decoded, samples);
        cost.bytes += bytes.len();
    }
    cost
}

fn columns(values: &[f64], readings: usize) -> Cost {
    let (mut cost, mut encoder, mut times, mut bytes) = (Cost::default(), ColumnEncoder::new(), Vec::new(), Vec::new());
    for hour in values.chunks(readings) {
        let dates = (0..readings as i64).map(|at| 1_776_693_600_000 + at * (HOUR_MS / readings as i64));
        times.clear();
        bytes.clear();
        cost.encode += timed(|| {
            encoder.dates(dates, &mut times);
            encoder.doubles(black_box(hour).iter().copied().map(Some), &mut bytes);
        });
        let mut decoded = Vec::with_capacity(readings);
        cost.decode += timed(|| {
            let readings = Dates::new(black_box(&times)).zip(Doubles::new(black_box(&bytes)));
            decoded.extend(readings.map(|(date, value)| (date.expect("a date"), value.expect("a double"))));
        });
        assert!(decoded.iter().map(|(_, value)| *value).eq(hour.iter().copied().map(Some)));
        cost.bytes += times.len() + bytes.len();
    }
    cost
}

fn pco(values: &[f64], readings: usize) -> Cost {
    let mut cost = Cost::default();
    for hour in values.chunks(readings) {
        let mut bytes = Vec::new();
        let config = pco::ChunkConfig::default();
        cost.encode += timed(|| bytes = pco::standalone::simple_compress(black_box(hour), &config).expect("a chunk"));
        cost.bytes += bytes.len();
    }
    cost
}

/// Measures the processor time of this thread.
fn timed(work: impl FnOnce()) -> Duration {
    let start = thread_cpu();
    work();
    thread_cpu().saturating_sub(start)
}

fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
