//! Invariants fuzzed on any document that the server may return: people can write to its collections.

use bson::RawDocument;

use super::{bucket, devices, older, rollups};

/// Decodes a document as each collection reads it.
pub fn document(bytes: &[u8]) {
    let Ok(document) = RawDocument::from_bytes(bytes) else { return };
    bucket::fuzz::document(document);
    rollups::fuzz::document(document);
    devices::fuzz::document(document);
    older::fuzz::document(document);
}
