//! The notes of JSON answers: ignored fields, and values that replaced others.

use std::num::NonZeroU32;

use serde::Serialize;
use utoipa::ToSchema;

use crate::common::clock::rfc3339;
use crate::ingest::{OverwrittenValue, Receipt};

/// Notes on the accepted readings of a request.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Remarks)]
pub(in crate::http) struct ReceiptNotes {
    /// The number of ignored parts of the body, such as texts among the values.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u32, required = false)]
    ignored: Option<NonZeroU32>,
    /// The names of the first ignored parts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    ignored_fields: Vec<Box<str>>,
    /// The number of readings that replaced a value of the same request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u32, required = false)]
    overwritten: Option<NonZeroU32>,
    /// The first readings that replaced a value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overwritten_readings: Vec<Overwriting>,
    /// The number of repeated readings left out, because the server has newer ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u32, required = false)]
    older: Option<NonZeroU32>,
    /// The number of values left out of other repeated readings for the same reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u32, required = false)]
    older_values: Option<NonZeroU32>,
}

/// A reading that replaced a value of the same request.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Overwriting {
    /// The ID of the device.
    #[schema(value_type = String)]
    device_id: Box<str>,
    /// The time of the reading, as RFC 3339.
    #[schema(format = DateTime)]
    ts: String,
    /// The series whose value was replaced.
    #[schema(value_type = String)]
    metric: Box<str>,
}

impl ReceiptNotes {
    pub(in crate::http) fn of(receipt: &Receipt) -> Self {
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
            older: NonZeroU32::new(receipt.older),
            older_values: NonZeroU32::new(receipt.older_values),
        }
    }
}
