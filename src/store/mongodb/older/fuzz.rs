//! Invariants fuzzed on any document of a collection with older shapes.

use std::collections::BTreeSet;

use bson::RawDocument;

use super::{DocumentId, ShapeRules, shape};
use crate::model::{DeviceIdCase, check_device_id};
use crate::wire::Limits;

/// Reads a document, and checks what was understood.
pub(in super::super) fn document(document: &RawDocument) {
    if let Ok(id) = DocumentId::of(document) {
        let text = DocumentId::from_text(&id.to_text()).expect("the text of an _id").to_text();
        assert_eq!(text, id.to_text());
    }
    let ignored = BTreeSet::from(["bucket".to_owned()]);
    for ignored in [BTreeSet::new(), ignored] {
        let rules = ShapeRules {
            ignored,
            metadata: BTreeSet::from(["unit".to_owned()]),
            device_id_case: DeviceIdCase::Preserve,
            limits: Limits { max_metrics: 256, max_metadata_bytes: 4096 },
        };
        let Ok(bucket) = shape::understand(document, &rules) else { continue };
        assert!(check_device_id(&bucket.device).is_ok());
        assert!(bucket.hours.is_sorted_by(|(a, _), (b, _)| a < b));
        for (_, contents) in &bucket.hours {
            assert!(!contents.is_empty());
            let samples = contents.samples();
            assert!(samples.iter().all(|sample| sample.offset < 3_600_000 && sample.value.is_finite()));
        }
    }
}
