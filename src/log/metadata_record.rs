//! Records of metadata that operators set.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::batch::Batch;
use super::record::Kind;
use crate::model::OperatorMetadata;

/// A record of a change that an operator has made in the metadata of a device.
///
/// # Grammar
/// The payload is this struct as JSON: changes are rare, and people may have to read them.
/// ```json
/// {"device":"d","by":"ops","change":{"keys":{"name":{"atMs":1776693610000,"value":"Press 3"}}}}
/// ```
/// Changes may be merged again and in any order, so a replay needs no note of what the store has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetadataRecord {
    /// The stored ID of the device.
    pub device: Arc<str>,
    /// The name of the token that has made the change.
    pub by: Arc<str>,
    /// The keys that are set and removed.
    pub change: OperatorMetadata,
}

impl MetadataRecord {
    /// Encodes this as the payload of a record.
    #[must_use]
    pub fn to_batch(&self) -> Batch {
        Batch::of_record(Kind::Metadata, serde_json::to_vec(self).expect("it has string keys only"), 0)
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// When the payload breaks the grammar.
    pub fn of(payload: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(payload).map_err(|error| format!("no record of metadata: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_read_and_written() {
        let text =
            r#"{"device":"d","by":"ops","change":{"replacedMs":7,"keys":{"name":{"atMs":7,"value":"Press 3"}}}}"#;
        let record = MetadataRecord::of(text.as_bytes()).unwrap();
        assert_eq!((&*record.device, &*record.by, record.change.replaced_ms), ("d", "ops", Some(7)));
        assert_eq!(String::from_utf8_lossy(record.to_batch().payload()), text);
        MetadataRecord::of(br#"{"device":"d","by":"ops","change":{},"more":1}"#).unwrap_err();
    }
}
