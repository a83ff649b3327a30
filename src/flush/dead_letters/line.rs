//! The lines of a dead-letter file: written, read back, and reduced by deletions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::file::Change;
use crate::common::clock::rfc3339;
use crate::common::one_line::on_one_line;
use crate::model::{BucketWrite, Deletion, Metric};

/// Refused readings of a device, as text.
#[derive(Debug, Clone)]
pub struct Letter {
    /// The stable word for the reason.
    pub reason: &'static str,
    /// The reason as text for people.
    pub detail: String,
    /// The fields of the ingest API as a JSON object: one line.
    pub object: Vec<u8>,
}

impl Letter {
    /// The line, with its end.
    pub(super) fn line(&self, refused_at: &str) -> std::io::Result<Vec<u8>> {
        let Self { reason, detail, object } = self;
        let mut line = serde_json::to_vec(&Head { refused_at, reason, detail })?;
        line.pop(); // the closing brace
        line.push(b',');
        line.extend_from_slice(object.get(1..).unwrap_or_default());
        line.push(b'\n');
        Ok(line)
    }
}

/// The beginning of a line.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    refused_at: &'a str,
    reason: &'a str,
    detail: &'a str,
}

/// The readings of a bucket as a line.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line<'a> {
    refused_at: String,
    reason: &'a str,
    detail: &'a str,
    device_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
    readings: Vec<LineReading>,
}

#[derive(Serialize)]
struct LineReading {
    ts: i64,
    values: BTreeMap<Metric, f64>,
}

/// The device of a line.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeviceOf<'a> {
    #[serde(borrow)]
    device_id: std::borrow::Cow<'a, str>,
}

/// A line that was read back.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnedLine {
    refused_at: String,
    reason: String,
    detail: String,
    device_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
    readings: Vec<OwnedReading>,
}

#[derive(Serialize, Deserialize)]
struct OwnedReading {
    ts: i64,
    values: BTreeMap<String, Box<RawValue>>,
}

impl<'a> Line<'a> {
    pub(super) fn of(write: &'a BucketWrite, reason: &'a str, detail: &'a str, now_ms: i64) -> Self {
        let (contents, metadata) = (&write.contents, write.metadata.as_deref());
        let readings = contents.readings().map(|reading| LineReading {
            ts: write.hour.instant_ms(reading.offset),
            values: reading.samples.iter().map(|sample| (contents.metric_of(sample).clone(), sample.value)).collect(),
        });
        Self {
            refused_at: rfc3339(now_ms),
            reason,
            detail,
            device_id: &write.device,
            metadata: metadata.and_then(|text| RawValue::from_string(on_one_line(text).into_owned()).ok()),
            readings: readings.collect(),
        }
    }
}

/// Returns what a deletion leaves of a line, and the number of readings that it removes. A line that is no
/// dead letter stays as it is.
pub(super) fn without(line: &[u8], deletion: &Deletion) -> (Change, u64) {
    // Most lines are of other devices, and are not parsed as a whole.
    let is_of_device = serde_json::from_slice::<DeviceOf<'_>>(line).is_ok_and(|of| *of.device_id == *deletion.device);
    let Some(mut letter) = is_of_device.then(|| serde_json::from_slice::<OwnedLine>(line).ok()).flatten() else {
        return (Change::Keep, 0);
    };
    let (mut deleted, mut has_changed) = (0, false);
    letter.readings.retain_mut(|reading| {
        if !deletion.has_instant(reading.ts) {
            return true;
        }
        let before = reading.values.len();
        reading.values.retain(|metric, _| !deletion.series.matches(metric));
        has_changed |= reading.values.len() < before;
        deleted += u64::from(reading.values.len() < before);
        !reading.values.is_empty()
    });
    match (has_changed, letter.readings.is_empty()) {
        (false, _) => (Change::Keep, 0),
        (true, true) => (Change::Remove, deleted),
        (true, false) => match serde_json::to_vec(&letter) {
            Ok(line) => (Change::Replace(line), deleted),
            Err(_) => (Change::Keep, 0),
        },
    }
}
