//! Reads and writes stats as sub-documents.
//!
//! ```js
//! { lux: { count: 360, min: 310, max: 322, sum: 113400,
//!          first: { ts: ISODate("2026-04-20T14:00:10Z"), value: 320 },
//!          last: { ts: ISODate("2026-04-20T14:59:50Z"), value: 310 } } }
//! ```
//!
//! In `first` and `last`, `ts` precedes `value`: the server compares documents field by field, so that `$min`
//! and `$max` compare their instants.

use bson::{RawBsonRef, RawDocument};

use super::decode::{DecodeError, UsualElements, elements, number};
use super::encode::{Encoder, Key};
use super::names;
use crate::model::{Metric, Stats, ValueAt};
use crate::store::metric_names::MetricNames;

/// Writes the stats of each metric.
pub(super) fn encode_stats(fields: &mut Encoder, key: impl Key, stats: &[(Metric, Stats)]) {
    fields.document(key, |metrics| {
        for (metric, stats) in stats {
            metrics.document(&*names::stored(metric), |of| {
                of.int64("count", stats.count as i64);
                of.double("min", stats.min);
                of.double("max", stats.max);
                of.double("sum", stats.sum);
                encode_value_at(of, "first", stats.first);
                encode_value_at(of, "last", stats.last);
            });
        }
    });
}

/// Writes a value and its instant.
pub(super) fn encode_value_at(fields: &mut Encoder, key: impl Key, ValueAt { ts_ms, value }: ValueAt) {
    fields.document(key, |of| {
        of.datetime("ts", ts_ms);
        of.double("value", value);
    });
}

/// Reads the stats of the metrics that `metrics` asks for.
pub(super) fn decode_stats(
    document: &RawDocument,
    metrics: &mut MetricNames,
) -> Result<Vec<(Metric, Stats)>, DecodeError> {
    let mut found = Vec::with_capacity(metrics.of_last_hour);
    for element in elements(document) {
        let (key, value) = element?;
        let key = str::from_utf8(key).map_err(|_| DecodeError("the name of a metric is not UTF-8".into()))?;
        let Some(metric) = metrics.get(&names::original(key)) else { continue };
        let of = value.as_document().ok_or_else(|| DecodeError("the stats of a metric are not a document".into()))?;
        found.push((metric, decode_stats_of_metric(of)?));
    }
    metrics.of_last_hour = found.len();
    Ok(found)
}

/// Reads the stats of one metric.
fn decode_stats_of_metric(of: &RawDocument) -> Result<Stats, DecodeError> {
    usual_stats(of).map_or_else(|| decode_unusual_stats(of), Ok)
}

/// Reads the stats of one metric, whose fields may be in any order.
fn decode_unusual_stats(of: &RawDocument) -> Result<Stats, DecodeError> {
    let (mut count, mut min, mut max, mut sum) = (None, None, None, None);
    let (mut first, mut last) = (None, None);
    for element in elements(of) {
        let (key, value) = element?;
        match key {
            b"count" => count = Some(number(value)?),
            b"min" => min = Some(number(value)?),
            b"max" => max = Some(number(value)?),
            // The server adds up infinities of both signs to NaN.
            b"sum" => sum = Some(if is_nan(value) { f64::INFINITY } else { number(value)? }),
            b"first" => first = Some(decode_value_at(value)?),
            b"last" => last = Some(decode_value_at(value)?),
            _ => {}
        }
    }
    match (count, min, max, sum, first, last) {
        (Some(count), Some(min), Some(max), Some(sum), Some(first), Some(last)) if count >= 1.0 => {
            Ok(Stats { count: count as u64, min, max, sum, first, last })
        }
        _ => Err(DecodeError("the stats of a metric are not complete".into())),
    }
}

fn is_nan(value: RawBsonRef<'_>) -> bool {
    value.as_f64().is_some_and(f64::is_nan)
}

/// Reads the stats of one metric in the order in which [`encode_stats`] writes.
///
/// `None` if they have another shape. An answer may have the stats of tens of thousands of hours.
fn usual_stats(of: &RawDocument) -> Option<Stats> {
    const COUNT_MAX: u64 = 1 << f64::MANTISSA_DIGITS; // other counts may differ from their doubles
    const VALUE_AT: [u8; 4] = 32_i32.to_le_bytes();
    let mut fields = UsualElements::of(of);
    let count = u64::from_le_bytes(fields.next(b"\x12count\0")?);
    let min = f64::from_le_bytes(fields.next(b"\x01min\0")?);
    let max = f64::from_le_bytes(fields.next(b"\x01max\0")?);
    let sum = f64::from_le_bytes(fields.next(b"\x01sum\0")?);
    let value_at = |fields: &mut UsualElements<'_>| {
        fields.skip(&VALUE_AT)?;
        let ts_ms = i64::from_le_bytes(fields.next(b"\x09ts\0")?);
        let value = f64::from_le_bytes(fields.next(b"\x01value\0")?);
        fields.skip(b"\0")?;
        Some(ValueAt { ts_ms, value })
    };
    fields.skip(b"\x03first\0")?;
    let first = value_at(&mut fields)?;
    fields.skip(b"\x03last\0")?;
    let last = value_at(&mut fields)?;
    let are_numbers = [min, max, sum, first.value, last.value].iter().all(|number| !number.is_nan());
    let is_usual = are_numbers && (1..=COUNT_MAX).contains(&count) && fields.rest().is_empty();
    is_usual.then_some(Stats { count, min, max, sum, first, last })
}

/// Reads a value and its instant.
fn decode_value_at(of: RawBsonRef<'_>) -> Result<ValueAt, DecodeError> {
    let (mut ts_ms, mut found) = (None, None);
    let of = of.as_document().ok_or_else(|| DecodeError("a value and its instant are not a document".into()))?;
    for element in elements(of) {
        match element? {
            (b"ts", RawBsonRef::DateTime(ts)) => ts_ms = Some(ts.timestamp_millis()),
            (b"value", value) => found = Some(number(value)?),
            _ => {}
        }
    }
    match (ts_ms, found) {
        (Some(ts_ms), Some(value)) => Ok(ValueAt { ts_ms, value }),
        _ => Err(DecodeError("a value and its instant are not complete".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SeriesFilter;

    fn encoded(stats: &[(Metric, Stats)]) -> bson::RawDocumentBuf {
        Encoder::build(|top| encode_stats(top, "stats", stats))
    }

    #[test]
    fn stats_are_read_as_written_and_only_the_requested_ones() {
        let beyond = Stats { count: 2, min: f64::MIN, sum: f64::INFINITY, ..Stats::of(7, f64::MAX) };
        let stats = [("a.b".into(), Stats::of(-7, -0.5)), ("c".into(), beyond)];
        let document = encoded(&stats);
        let document = document.get_document("stats").unwrap();
        assert_eq!(decode_stats(document, &mut MetricNames::new(&SeriesFilter::ALL)).unwrap(), stats);
        assert_eq!(
            decode_stats(document, &mut MetricNames::new(&SeriesFilter::new(["c"], []).unwrap())).unwrap(),
            stats[1..]
        );
    }

    #[test]
    fn stats_of_any_order_and_of_any_numbers_are_read() {
        let stats = |order: &[&str]| {
            let at = |ms: i64, value| bson::doc! { "ts": bson::DateTime::from_millis(ms), "value": value };
            let whole = bson::doc! {
                "count": 3_i64, "min": -1.5, "max": 9.0, "sum": 8.5, "first": at(-7, 9.0), "last": at(5, -1.5),
                "people": "add what they like",
            };
            let picked: bson::Document =
                order.iter().map(|key| ((*key).to_owned(), whole.get(key).cloned().unwrap())).collect();
            bson::RawDocumentBuf::try_from(&picked).unwrap()
        };
        let read = |document: &RawDocument| decode_stats_of_metric(document).unwrap();
        let usual = stats(&["count", "min", "max", "sum", "first", "last"]);
        let expected = usual_stats(&usual).unwrap();
        assert_eq!((expected.count, expected.first), (3, ValueAt { ts_ms: -7, value: 9.0 }));
        assert_eq!(read(&usual), expected);
        for order in [
            &["last", "first", "sum", "max", "min", "count"][..],
            &["count", "min", "max", "sum", "first", "last", "people"],
        ] {
            let unusual = stats(order);
            assert_eq!(usual_stats(&unusual), None);
            assert_eq!(read(&unusual), expected);
        }
        for damaged in 0..usual.as_bytes().len() {
            let mut bytes = usual.as_bytes().to_vec();
            bytes[damaged] = !bytes[damaged];
            let Ok(document) = RawDocument::from_bytes(&bytes) else { continue };
            let generic = decode_unusual_stats(document).ok();
            assert!(decode_stats_of_metric(document).ok() == generic, "byte {damaged}");
        }
    }

    #[test]
    fn a_sum_that_is_nan_is_not_known_and_costs_nothing_else() {
        let of = |sum| Stats { count: 4, sum, ..Stats::of(7, 1.5) };
        let document = encoded(&[("a".into(), of(f64::NAN)), ("b".into(), of(2.0))]);
        let found = decode_stats(document.get_document("stats").unwrap(), &mut MetricNames::new(&SeriesFilter::ALL));
        assert_eq!(found.unwrap(), [("a".into(), of(f64::INFINITY)), ("b".into(), of(2.0))]);
    }

    #[test]
    fn incomplete_stats_are_unreadable() {
        let whole = bson::doc! {
            "count": 1, "min": 2.0, "max": 2.0, "sum": 2.0,
            "first": { "ts": bson::DateTime::from_millis(7), "value": 2 },
            "last": { "ts": bson::DateTime::from_millis(7), "value": 2 },
        };
        let is_readable = |stats: &bson::Document| {
            let document = bson::RawDocumentBuf::try_from(&bson::doc! { "lux": stats.clone() }).unwrap();
            decode_stats(&document, &mut MetricNames::new(&SeriesFilter::ALL)).is_ok()
        };
        assert!(is_readable(&whole));
        for missing in ["count", "min", "max", "sum", "first", "last"] {
            let mut bad = whole.clone();
            bad.remove(missing);
            assert!(!is_readable(&bad), "{missing}");
        }
        for first in [bson::bson!(2.0), bson::bson!({ "value": 2.0 }), bson::bson!({ "ts": 7, "value": 2.0 })] {
            let mut bad = whole.clone();
            bad.insert("first", first);
            assert!(!is_readable(&bad), "{bad}");
        }
    }
}
