//! Invariants fuzzed on any document of the bucket collection.

use std::collections::BTreeMap;

use bson::RawDocument;

use super::super::encode::Encoder;
use super::devices::PartSummary;
use super::document::{Part, encode_constant_fields};
use super::read::{bucket_hour, hour_stats};
use crate::model::{Contents, Sample, SeriesFilter};
use crate::store::metric_names::MetricNames;

/// Decodes a document in every way in which the layout reads it.
pub(in super::super) fn document(document: &RawDocument) {
    let _ = hour_stats(document, &mut MetricNames::new(&SeriesFilter::ALL));
    let _ = PartSummary::decode(document);
    let Ok(hour) = bucket_hour(document) else { return };
    let Ok(part) = Part::decode(document, hour) else { return };
    assert!(part.contents.samples().iter().all(|sample| sample.offset < 3_600_000), "readings are in the hour");
    if part.contents.reading_count() > 0 {
        let written = Encoder::build(|top| {
            encode_constant_fields(top, "device", hour, part.number);
            part.body().encode(top, hour);
        });
        let again = Part::decode(&written, hour).expect("written by us");
        assert_eq!((again.number, again.rev, again.full, again.last), (part.number, part.rev, part.full, part.last));
        assert_eq!(again.metadata, part.metadata);
        assert_eq!(spread(&again.contents), spread(&part.contents));
    }
}

/// The samples by instant and metric: the order of metrics and the bits of a NaN do not matter.
fn spread(contents: &Contents) -> BTreeMap<(u32, String), String> {
    let sample =
        |sample: &Sample| ((sample.offset, contents.metric_of(sample).to_string()), format!("{:?}", sample.value));
    contents.samples().iter().map(sample).collect()
}
