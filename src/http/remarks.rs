//! The remarks on accepted readings: ignored fields and overwritten values, as JSON answers have them.

use std::num::NonZeroU32;

use serde::Serialize;

use crate::common::clock::rfc3339;
use crate::ingest::{OverwrittenValue, Receipt};

/// The remarks on a request. Empty ones are not in the answer.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Remarks {
    /// The number of parts of the body that were dropped on purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    ignored: Option<NonZeroU32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignored_fields: Vec<Box<str>>,
    /// The number of readings that replaced values of others in the same request.
    #[serde(skip_serializing_if = "Option::is_none")]
    overwritten: Option<NonZeroU32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overwritten_readings: Vec<Overwriting>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Overwriting {
    device_id: Box<str>,
    ts: String,
    metric: Box<str>,
}

impl Remarks {
    pub(super) fn of(receipt: &Receipt) -> Self {
        let overwriting = |value: &OverwrittenValue| Overwriting {
            device_id: value.device.clone(),
            ts: rfc3339(value.ts_ms),
            metric: value.metric.clone(),
        };
        Self {
            ignored: NonZeroU32::new(receipt.ignored.count()),
            ignored_fields: receipt.ignored.names().to_vec(),
            overwritten: NonZeroU32::new(receipt.overwritten.readings),
            overwritten_readings: receipt.overwritten.first.iter().map(overwriting).collect(),
        }
    }
}
