//! Stats as sub-documents: `{ lux: { count: 360, min: 310, max: 322, sum: 113400 } }`.

use bson::RawDocument;

use super::decode::{DecodeError, number};
use super::encode::{Encoder, Key};
use super::names;
use crate::model::{Metric, Stats};
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
            });
        }
    });
}

/// Reads the stats of the metrics that `metrics` asks for.
pub(super) fn decode_stats(
    document: &RawDocument,
    metrics: &mut MetricNames,
) -> Result<Vec<(Metric, Stats)>, DecodeError> {
    let mut found = Vec::new();
    for element in document {
        let (key, value) = element?;
        let Some(metric) = metrics.get(&names::original(key.as_str())) else { continue };
        let of = value.as_document().ok_or_else(|| DecodeError("the stats of a metric are not a document".into()))?;
        found.push((metric, decode_stats_of_metric(of)?));
    }
    Ok(found)
}

fn decode_stats_of_metric(of: &RawDocument) -> Result<Stats, DecodeError> {
    let (mut count, mut min, mut max, mut sum) = (None, None, None, None);
    for element in of {
        let (key, value) = element?;
        let field = match key.as_str() {
            "count" => &mut count,
            "min" => &mut min,
            "max" => &mut max,
            "sum" => &mut sum,
            _ => continue,
        };
        *field = Some(number(value)?);
    }
    match (count, min, max, sum) {
        (Some(count), Some(min), Some(max), Some(sum)) if count >= 1.0 => {
            Ok(Stats { count: count as u64, min, max, sum })
        }
        _ => Err(DecodeError("the stats of a metric are not complete".into())),
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
        let beyond = Stats { count: 2, min: f64::MIN, max: f64::MAX, sum: f64::INFINITY };
        let stats = [("a.b".into(), Stats::of(-0.5)), ("c".into(), beyond)];
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
        let bad = Encoder::build(|top| top.document("lux", |of| of.int64("count", 1)));
        assert!(decode_stats(&bad, &mut MetricNames::new(&SeriesFilter::ALL)).is_err());
    }
}
