//! Invariants fuzzed on any document of the rollup collection.

use std::collections::BTreeMap;

use bson::RawDocument;

use super::document::{add_hours, add_revs, span_of};
use crate::model::{Hour, SeriesFilter};
use crate::store::StatsNeeds;
use crate::store::metric_names::MetricNames;

/// Decodes a document in every way in which the store reads it.
pub(in super::super) fn document(document: &RawDocument) {
    let mut found = Vec::new();
    let (all, mut names) = (Hour::ALL, MetricNames::new(&SeriesFilter::ALL));
    let _ = add_hours(document, &all, &mut names, StatsNeeds::All, |_| Ok(&mut found));
    assert!(found.len() <= 24, "a day has 24 hours");
    let _ = span_of(document);
    let mut revs = BTreeMap::new();
    add_revs(document, 0, &mut revs);
    assert!(revs.len() <= 24, "a day has 24 hours");
}
