//! Stats as sub-documents:
//!
//! ```js
//! { lux: { count: 360, min: 310, max: 322, sum: 113400,
//!          first: { ts: ISODate("2026-04-20T14:00:10Z"), value: 320 },
//!          last: { ts: ISODate("2026-04-20T14:59:50Z"), value: 310 } } }
//! ```
//!
//! Stats of version 1 have neither `first` nor `last`. In both, `ts` precedes `value`: the server compares
//! documents field by field, so that `$min` and `$max` compare their instants.

use bson::{RawBsonRef, RawDocument};

use super::decode::{DecodeError, elements, number};
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
                for (key, value) in [("first", stats.first), ("last", stats.last)] {
                    if let Some(value) = value {
                        encode_value_at(of, key, value);
                    }
                }
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
    let (mut count, mut min, mut max, mut sum) = (None, None, None, None);
    let (mut first, mut last) = (None, None);
    for element in elements(of) {
        let (key, value) = element?;
        match key {
            b"count" => count = Some(number(value)?),
            b"min" => min = Some(number(value)?),
            b"max" => max = Some(number(value)?),
            b"sum" => sum = Some(number(value)?),
            b"first" => first = Some(decode_value_at(value)?),
            b"last" => last = Some(decode_value_at(value)?),
            _ => {}
        }
    }
    match (count, min, max, sum) {
        (Some(count), Some(min), Some(max), Some(sum)) if count >= 1.0 => {
            Ok(Stats { count: count as u64, min, max, sum, first, last })
        }
        _ => Err(DecodeError("the stats of a metric are not complete".into())),
    }
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
        let old = Stats { first: None, last: None, ..Stats::of(7, f64::MAX) };
        let beyond = Stats { count: 2, min: f64::MIN, sum: f64::INFINITY, ..old };
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
    fn incomplete_stats_are_unreadable() {
        let whole = bson::doc! {
            "count": 1, "min": 2.0, "max": 2.0, "sum": 2.0,
            "first": { "ts": bson::DateTime::from_millis(7), "value": 2 },
        };
        let is_readable = |stats: &bson::Document| {
            let document = bson::RawDocumentBuf::try_from(&bson::doc! { "lux": stats.clone() }).unwrap();
            decode_stats(&document, &mut MetricNames::new(&SeriesFilter::ALL)).is_ok()
        };
        assert!(is_readable(&whole));
        for missing in ["count", "min", "max", "sum"] {
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
