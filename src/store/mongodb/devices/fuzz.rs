//! Invariants fuzzed on any document of the collection of the devices.

use bson::RawDocument;

use super::document::decode;
use crate::store::device_index::MAX_SERIES;

/// Decodes a document as the store reads it.
pub(in super::super) fn document(document: &RawDocument) {
    if let Ok(summary) = decode(document) {
        assert!(summary.series.len() <= MAX_SERIES && summary.series.is_sorted_by(|a, b| a.metric <= b.metric));
    }
}
