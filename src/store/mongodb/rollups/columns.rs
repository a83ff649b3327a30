//! The hours of a day as columns, written and read: `metrics` and `columns` of a packed document.
//!
//! `columns` is a [block](crate::codec::Block). Its instants are the hours of the day, 0 to 23, and its
//! series are numbered: 0 to 2 are the `rev` and the first and last instant of each hour; metric n of
//! `metrics` has the eight series from 3 + 8n on, in the order of [`Field`]. An instant is stored as the
//! milliseconds since the start of its hour.

use std::collections::HashMap;
use std::ops::Range;

use bson::{RawBinaryRef, RawDocument};

use super::super::decode::DecodeError;
use super::super::encode::Encoder;
use super::HourRollup;
use crate::codec::{BlockEncoder, Blocks};
use crate::model::{Hour, MS_PER_HOUR, Metric, Sample, Stats, ValueAt};
use crate::store::metric_names::MetricNames;
use crate::store::{HourStats, StatsNeeds};

/// The field with the names of the metrics.
pub(super) const METRICS: &str = "metrics";
/// The field with the block of columns.
pub(super) const COLUMNS: &str = "columns";
/// The subtype of binary data that MongoDB leaves to its users.
const USER_DEFINED: u8 = 0x80;

/// The most bytes of a block. A byte may stand for some hundred values, so this bounds the memory of reads.
const BYTES_MAX: usize = 256 << 10;
/// The most metrics, so that the numbers of series stay small.
const METRICS_MAX: usize = 10_000;

/// The metrics of an hour for which memory is reserved before they are read.
const METRICS_AT_ONCE: usize = 8;

/// A double holds each integer up to this one exactly.
const INTEGER_MAX: i64 = 1 << f64::MANTISSA_DIGITS;

const REV: u32 = 0;
const FIRST_TS: u32 = 1;
const LAST_TS: u32 = 2;
/// The number of the first series of the first metric. The series before it are of the hour itself.
const OF_METRICS: u32 = 3;

/// The series that each metric has, in their order.
#[derive(Debug, Clone, Copy)]
enum Field {
    Count,
    Min,
    Max,
    Sum,
    FirstAt,
    First,
    LastAt,
    Last,
}

const FIELDS: usize = 8;

/// An hour of a packed day.
#[derive(Debug, PartialEq)]
pub(super) struct PackedHour {
    pub(super) rev: i64,
    pub(super) first_ts_ms: i64,
    pub(super) stats: HourStats,
}

/// The hours of a packed day, by their numbers.
pub(super) type PackedDay = [Option<PackedHour>; 24];

/// The metrics and the block of some hours of a day.
pub(super) struct Packed {
    metrics: Vec<Metric>,
    block: Vec<u8>,
}

impl Packed {
    /// Packs hours. Returns `None` if a number does not fit into a double, or if there are too many metrics.
    pub(super) fn of(hours: &[&HourRollup]) -> Option<Self> {
        let (mut metrics, mut places, mut samples) = (Vec::new(), HashMap::new(), Vec::new());
        for HourRollup { rev, first_ts_ms, stats, .. } in hours {
            let hour = stats.hour;
            let offset = hour.0.rem_euclid(24).unsigned_abs();
            let mut add = |metric, value| samples.push(Sample { value, offset, metric });
            add(REV, double(*rev)?);
            add(FIRST_TS, double(offset_in(hour, *first_ts_ms)?)?);
            add(LAST_TS, double(offset_in(hour, stats.last_ts_ms)?)?);
            for (metric, of) in &stats.stats {
                let place = *places.entry(metric.clone()).or_insert_with(|| {
                    metrics.push(metric.clone());
                    metrics.len() - 1
                });
                let mut add = |field: Field, value| add(series_of(place, field), value);
                add(Field::Count, double(i64::try_from(of.count).ok()?)?);
                add(Field::Min, of.min);
                add(Field::Max, of.max);
                add(Field::Sum, of.sum);
                for (end, at, value) in
                    [(of.first, Field::FirstAt, Field::First), (of.last, Field::LastAt, Field::Last)]
                {
                    add(at, double(offset_in(hour, end.ts_ms)?)?);
                    add(value, end.value);
                }
            }
            if metrics.len() > METRICS_MAX {
                return None;
            }
        }
        samples.sort_unstable_by_key(Sample::key);
        let mut block = Vec::new();
        BlockEncoder::default().encode(&samples, &mut block);
        (block.len() <= BYTES_MAX).then_some(Self { metrics, block })
    }

    /// Writes the fields [`METRICS`] and [`COLUMNS`].
    pub(super) fn encode(&self, document: &mut Encoder) {
        document.array(METRICS, |names| {
            self.metrics.iter().enumerate().for_each(|(at, metric)| names.string(at, metric));
        });
        document.binary(COLUMNS, USER_DEFINED, |bytes| bytes.extend_from_slice(&self.block));
    }
}

/// The hours in the columns of a document, with the stats that `needs` asks for.
///
/// They have the metrics that `names` wants. A document without columns has no such hours.
pub(super) fn decode(
    document: &RawDocument,
    start: Hour,
    names: &mut MetricNames,
    needs: StatsNeeds,
) -> Result<PackedDay, DecodeError> {
    let mut day = [const { None }; 24];
    let Some(columns) = document.get(COLUMNS)? else { return Ok(day) };
    let Some(RawBinaryRef { bytes, .. }) = columns.as_binary().filter(|of| of.bytes.len() <= BYTES_MAX) else {
        return Err(invalid("the columns of a day are not bytes, or too many"));
    };
    let mut metrics = Vec::new();
    for name in document.get_array(METRICS)? {
        metrics.push(names.get(name?.as_str().ok_or_else(|| invalid("a metric of a day has no name"))?));
    }
    let block = Blocks::new(bytes).next().ok_or_else(|| invalid("a day has no columns"))?;
    let block = block.map_err(|error| DecodeError(error.to_string()))?;
    if block.series().any(|series| series.offsets().last().is_some_and(|hour| *hour >= 24)) {
        return Err(invalid("a day has more than 24 hours"));
    }

    let mut hours = [[None; OF_METRICS as usize]; 24];
    for series in block.series().take_while(|series| series.metric() < OF_METRICS) {
        series.samples().for_each(|(hour, value)| hours[hour as usize][series.metric() as usize] = Some(value));
    }
    let wanted = metrics.iter().flatten().count();
    for (at, (hour, fields)) in day.iter_mut().zip(hours).enumerate() {
        *hour = hour_of(Hour(start.0.saturating_add(at as i32)), fields, wanted)?;
    }
    let fields = match needs {
        StatsNeeds::Numbers => Field::FirstAt as usize,
        StatsNeeds::All => FIELDS,
    };
    let mut of_metric = OfMetric { place: 0, values: [[None; FIELDS]; 24] };
    for series in block.series().skip_while(|series| series.metric() < OF_METRICS) {
        let number = (series.metric() - OF_METRICS) as usize;
        if number / FIELDS != of_metric.place {
            of_metric.add_to(&mut day, &metrics, needs)?;
            of_metric = OfMetric { place: number / FIELDS, values: [[None; FIELDS]; 24] };
        }
        if number % FIELDS < fields && metrics.get(of_metric.place).is_some_and(Option::is_some) {
            series.samples().for_each(|(hour, value)| of_metric.values[hour as usize][number % FIELDS] = Some(value));
        }
    }
    of_metric.add_to(&mut day, &metrics, needs)?;
    Ok(day)
}

/// Makes an hour from its own fields, still without stats; `None` if it has no field.
///
/// It has memory for the stats of up to [`METRICS_AT_ONCE`] metrics.
fn hour_of(
    hour: Hour,
    fields: [Option<f64>; OF_METRICS as usize],
    metrics: usize,
) -> Result<Option<PackedHour>, DecodeError> {
    let [Some(rev), Some(first_at), Some(last_at)] = fields else {
        let is_empty = fields.iter().all(Option::is_none);
        return if is_empty { Ok(None) } else { Err(invalid("an hour of a day is not complete")) };
    };
    let at = |value| integer(value, 0..MS_PER_HOUR).map(|at| hour.start_ms() + at);
    let (rev, first_ts_ms, last_ts_ms) = (integer(rev, 0..INTEGER_MAX + 1)?, at(first_at)?, at(last_at)?);
    let stats = Vec::with_capacity(metrics.min(METRICS_AT_ONCE));
    Ok(Some(PackedHour { rev, first_ts_ms, stats: HourStats { hour, last_ts_ms, stats } }))
}

/// The columns of one metric.
struct OfMetric {
    /// The place of the metric in `metrics`.
    place: usize,
    values: [[Option<f64>; FIELDS]; 24],
}

impl OfMetric {
    /// Adds the stats of the metric to the hours of the day.
    fn add_to(&self, day: &mut PackedDay, metrics: &[Option<Metric>], needs: StatsNeeds) -> Result<(), DecodeError> {
        let Some(Some(metric)) = metrics.get(self.place) else { return Ok(()) }; // it is not wanted
        for (hour, values) in day.iter_mut().zip(&self.values) {
            let (Some(hour), Some(count)) = (hour, values[0]) else { continue };
            let stats = &mut hour.stats;
            let known = |field: Field| {
                let value = values[field as usize].ok_or_else(|| invalid("the stats of a metric are not complete"))?;
                if value.is_nan() { Err(invalid("a number of the stats is not a number")) } else { Ok(value) }
            };
            let start_ms = stats.hour.start_ms();
            let value_at = |at, value| -> Result<_, DecodeError> {
                Ok(match needs {
                    StatsNeeds::Numbers => ValueAt::unknown(start_ms),
                    StatsNeeds::All => {
                        ValueAt { ts_ms: start_ms + integer(known(at)?, 0..MS_PER_HOUR)?, value: known(value)? }
                    }
                })
            };
            let (min, max, sum) = (known(Field::Min)?, known(Field::Max)?, known(Field::Sum)?);
            let first = value_at(Field::FirstAt, Field::First)?;
            let last = value_at(Field::LastAt, Field::Last)?;
            let count = integer(count, 1..INTEGER_MAX + 1)?.unsigned_abs();
            stats.stats.push((metric.clone(), Stats { count, min, max, sum, first, last }));
        }
        Ok(())
    }
}

/// The number of the series of a field of a metric.
const fn series_of(place: usize, field: Field) -> u32 {
    OF_METRICS + (place * FIELDS) as u32 + field as u32 // at most METRICS_MAX places
}

/// The distance of an instant from the start of its hour.
fn offset_in(hour: Hour, ts_ms: i64) -> Option<i64> {
    Some(ts_ms - hour.start_ms()).filter(|offset| (0..MS_PER_HOUR).contains(offset))
}

/// An integer as a double; `None` if it is negative, or the double is not exact.
fn double(integer: i64) -> Option<f64> {
    (0..=INTEGER_MAX).contains(&integer).then_some(integer as f64)
}

fn integer(value: f64, range: Range<i64>) -> Result<i64, DecodeError> {
    let integer = value as i64; // saturates
    let is_exact = (integer as f64).to_bits() == value.to_bits() && range.contains(&integer);
    if is_exact { Ok(integer) } else { Err(invalid("a number of a day is no integer in its range")) }
}

fn invalid(why: &str) -> DecodeError {
    DecodeError(why.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::SeriesFilter;

    const START: Hour = Hour(24 * 20_000);

    fn hour(at: i32, rev: i64, stats: Vec<(Metric, Stats)>) -> HourRollup {
        let hour = Hour(START.0 + at);
        let stats = HourStats { hour, last_ts_ms: hour.end_ms() - 1, stats };
        HourRollup { device: Arc::from("d"), rev, first_ts_ms: hour.instant_ms(7), stats, may_lack_deleted: false }
    }

    fn stats(at: i32, value: f64) -> Stats {
        let at = |offset, value| ValueAt { ts_ms: Hour(START.0 + at).instant_ms(offset), value };
        Stats { count: 3, min: -value, max: value, sum: value * 0.3, first: at(7, value), last: at(3_599_999, -0.0) }
    }

    fn document(packed: &Packed) -> bson::RawDocumentBuf {
        Encoder::build(|document| packed.encode(document))
    }

    #[test]
    fn hours_are_read_as_written_and_only_the_requested_metrics() {
        let beyond = Stats { sum: f64::INFINITY, ..stats(7, f64::MAX) };
        let hours = [
            hour(0, 1, vec![("b.c".into(), stats(0, 1.5))]),
            hour(7, 1 << 53, vec![("a".into(), stats(7, 21.37)), ("b.c".into(), beyond)]),
            hour(23, 3, vec![("a".into(), stats(23, f64::MIN_POSITIVE))]),
        ];
        let packed = Packed::of(&hours.each_ref()).unwrap();
        let read = |series: &SeriesFilter| {
            let day = decode(&document(&packed), START, &mut MetricNames::new(series), StatsNeeds::All).unwrap();
            day.into_iter().flatten().collect::<Vec<_>>()
        };
        let found = read(&SeriesFilter::ALL);
        assert_eq!(found.len(), hours.len());
        for (found, hour) in found.iter().zip(&hours) {
            let mut expected = hour.stats.clone();
            expected.stats.sort_by_key(|(name, _)| &**name == "a"); // "b.c" came first
            assert_eq!((found.rev, found.first_ts_ms, &found.stats), (hour.rev, hour.first_ts_ms, &expected));
        }
        let numbers = decode(&document(&packed), START, &mut MetricNames::new(&SeriesFilter::ALL), StatsNeeds::Numbers);
        for (numbers, hour) in numbers.unwrap().into_iter().flatten().zip(&found) {
            assert_eq!((numbers.rev, numbers.stats.stats.len()), (hour.rev, hour.stats.stats.len()));
            for ((metric, of), (known, all)) in numbers.stats.stats.iter().zip(&hour.stats.stats) {
                assert_eq!((metric, of.count, of.min, of.max, of.sum), (known, all.count, all.min, all.max, all.sum));
                assert!(of.first.value.is_nan() && of.last.value.is_nan());
            }
        }
        let of_a = read(&SeriesFilter::new(["a"], []).unwrap());
        assert_eq!(of_a.iter().map(|hour| hour.stats.stats.len()).collect::<Vec<_>>(), [0, 1, 1]);
    }

    #[test]
    fn a_day_of_one_metric_takes_few_bytes() {
        let value = |at: i32| f64::from(200 + at * 7 % 30) / 10.0;
        let hours: Vec<_> = (0..24).map(|at| hour(at, 1, vec![("lux".into(), stats(at, value(at)))])).collect();
        let packed = Packed::of(&hours.iter().collect::<Vec<_>>()).unwrap();
        assert!(packed.block.len() < 300, "{}", packed.block.len());
    }

    #[test]
    fn what_is_no_double_or_outside_of_its_hour_is_not_packed() {
        let good = hour(3, 1, vec![("a".into(), stats(3, 1.0))]);
        assert!(Packed::of(&[&good]).is_some());
        let late = hour(3, 1, vec![("a".into(), stats(4, 1.0))]);
        let many = hour(3, 1, vec![("a".into(), Stats { count: u64::MAX, ..stats(3, 1.0) })]);
        for bad in
            [HourRollup { rev: (1 << 53) + 1, ..good.clone() }, HourRollup { first_ts_ms: 0, ..good }, late, many]
        {
            assert!(Packed::of(&[&bad]).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn damaged_columns_are_refused_or_read() {
        let hours: Vec<_> = (0..24).map(|at| hour(at, 1, vec![("lux".into(), stats(at, f64::from(at)))])).collect();
        let mut packed = Packed::of(&hours.iter().collect::<Vec<_>>()).unwrap();
        let names = || MetricNames::new(&SeriesFilter::ALL);
        let read = |packed: &Packed| decode(&document(packed), START, &mut names(), StatsNeeds::All);
        let mut refused = 0;
        for at in 0..packed.block.len() {
            packed.block[at] = !packed.block[at];
            refused += usize::from(read(&packed).is_err());
            packed.block[at] = !packed.block[at];
        }
        assert!(refused > packed.block.len() / 4, "{refused}");
        packed.block.resize(BYTES_MAX + 1, 0);
        assert!(read(&packed).is_err());
    }
}
