//! Checks a sample of the documents: their sizes, and the readings of buckets.

use bson::{Document, doc};

use super::super::collection::Kind;
use super::super::decode::server_integer;
use super::expected::Expected;
use super::{Inspector, first_batch, number};
use crate::common::finding::{Finding, Part, count, size};

const SIZES: Part = Part::DocumentsSize;
const READINGS: Part = Part::DocumentsReadings;

/// The largest document of a server.
const DOCUMENT_MAX: u64 = 16 << 20;

/// A document of this share of the largest size is a warning.
const LARGE_PERCENT: u64 = 75;

/// The most documents of a sample, and their most bytes in the server's memory.
const SAMPLE_MAX: u64 = 1_000;
const SAMPLE_BYTES: u64 = 48 << 20;

/// A lower median of the readings in a document becomes a note.
///
/// Documents then cost the server more than their readings do.
const FEW_READINGS: u64 = 5;

impl Inspector<'_> {
    pub(super) async fn check_documents(&mut self, present: &[&Expected]) {
        for expected in present {
            let Some(stats) = self.ask(SIZES, None, doc! { "collStats": expected.name() }).await else { continue };
            match expected.kind {
                Kind::Timeseries => self.findings.extend(buckets_of_server(expected.name(), &stats)),
                Kind::Plain => self.check_sample(expected, &stats).await,
            }
        }
    }

    async fn check_sample(&mut self, expected: &Expected, stats: &Document) {
        let (Some(documents), Some(average)) = (number(stats, "count"), number(stats, "avgObjSize")) else { return };
        let wanted = (SAMPLE_BYTES / average.max(1)).clamp(1, SAMPLE_MAX);
        let pipeline = [
            doc! { "$sample": { "size": wanted.cast_signed() } },
            doc! { "$project": { "_id": 0, "size": { "$bsonSize": "$$ROOT" }, "readings": "$readingCount" } },
        ];
        let cursor = doc! { "batchSize": SAMPLE_MAX.cast_signed() };
        let aggregate = doc! { "aggregate": expected.name(), "pipeline": pipeline.to_vec(), "cursor": cursor };
        let Some(reply) = self.ask(SIZES, None, aggregate).await else { return };
        let sample = first_batch(&reply);
        self.findings.extend(sizes(expected.name(), documents, &sample));
        self.findings.extend(readings(expected.name(), &sample));
    }
}

/// The values that a field has in a sample, ascending.
fn sorted(sample: &[Document], field: &str) -> Vec<u64> {
    let of = |document: &Document| document.get(field).and_then(server_integer).and_then(|value| value.try_into().ok());
    let mut values: Vec<u64> = sample.iter().filter_map(of).collect();
    values.sort_unstable();
    values
}

/// The median, the 99th percentile and the largest of some values, which ascend.
fn percentiles(sorted: &[u64]) -> Option<[u64; 3]> {
    let last = sorted.len().checked_sub(1)?;
    Some([50, 99, 100].map(|percent| sorted[(last * percent).div_ceil(100)]))
}

fn sizes(name: &str, documents: u64, sample: &[Document]) -> Option<Finding> {
    let sizes = sorted(sample, "size");
    let [half, most, largest] = percentiles(&sizes)?;
    let message = format!(
        "of {} documents of {name}, {} were measured: p50 {}, p99 {}, the largest {} of {}",
        count(documents.max(sizes.len() as u64)),
        count(sizes.len() as u64),
        size(half),
        size(most),
        size(largest),
        size(DOCUMENT_MAX)
    );
    if largest < DOCUMENT_MAX / 100 * LARGE_PERCENT {
        return Some(Finding::ok(SIZES, message));
    }
    Some(Finding::warning(
        SIZES,
        format!("{message}: the server refuses larger ones, and their readings become dead letters"),
        "lower mongodb.max_document_bytes and mongodb.max_readings_per_document, and use fewer series for one device \
         or shorter names",
    ))
}

fn readings(name: &str, sample: &[Document]) -> Option<Finding> {
    let [half, most, largest] = percentiles(&sorted(sample, "readings"))?;
    let message =
        format!("readings of a document of {name}: p50 {}, p99 {}, most {}", count(half), count(most), count(largest));
    if half >= FEW_READINGS {
        return Some(Finding::ok(READINGS, message));
    }
    let note = Finding::note(READINGS, format!("{message}: documents cost the server more than readings do"));
    Some(note.with_mend(
        "raise flush.max_age if mongodb.layout is \"packed\". Nothing is wrong if the service has just begun, or if \
         its devices send a few readings an hour",
    ))
}

/// The finding about the server's own buckets of a time series. The server counts inserts since its start.
fn buckets_of_server(name: &str, stats: &Document) -> Option<Finding> {
    let of_series = stats.get_document("timeseries").ok()?;
    let (buckets, average) = (number(of_series, "bucketCount")?, number(of_series, "avgBucketSize").unwrap_or(0));
    let (inserted, measurements) =
        (number(of_series, "numBucketInserts")?, number(of_series, "numMeasurementsCommitted")?);
    let since = measurements.checked_div(inserted).map_or_else(
        || "none since the server started".to_owned(),
        |of_each| format!("{} measurements in a bucket since the server started", count(of_each)),
    );
    let message = format!("{name} has {} buckets of {} on average, {since}", count(buckets), size(average));
    Some(Finding::ok(READINGS, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::finding::Severity;

    #[test]
    fn percentiles_are_of_the_sample() {
        assert_eq!(percentiles(&[]), None);
        assert_eq!(percentiles(&[7]), Some([7, 7, 7]));
        assert_eq!(percentiles(&(1..=101).collect::<Vec<_>>()), Some([51, 100, 101]));
    }

    #[test]
    fn a_document_near_the_limit_of_the_server_is_found() {
        let of = |largest: i32| sizes("x", 2, &[doc! { "size": 100 }, doc! { "size": largest }]).unwrap().severity;
        assert_eq!((of(11 << 20), of(13 << 20)), (Severity::Ok, Severity::Warning));
        assert_eq!(sizes("x", 0, &[]), None);
    }
}
