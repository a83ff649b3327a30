//! The lines of a dead-letter file: written, read back, and reduced by deletions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::file::Change;
use crate::common::clock::rfc3339;
use crate::common::one_line::on_one_line;
use crate::model::{BucketWrite, Contents, Deletion, METRICS_PER_READING, Metric};

/// The most readings of a line.
pub const READINGS_PER_LINE: usize = 1_000;

/// A line ends once its readings take about this many bytes.
const BYTES_PER_LINE: usize = 512 << 10;

/// The bytes that a number takes as text, as an estimate.
const NUMBER_BYTES: usize = 20;

/// Refused readings of a device, as text: at most [`READINGS_PER_LINE`].
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
    pub(super) fn line(&self, refused_at: &str) -> serde_json::Result<Vec<u8>> {
        Head { refused_at, reason: self.reason, detail: &self.detail }.line(&self.object)
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

impl Head<'_> {
    /// Returns a line with its end: this beginning, then the members of the JSON object `object`.
    fn line(&self, object: &[u8]) -> serde_json::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.pop(); // the closing brace
        line.push(b',');
        line.extend_from_slice(object.get(1..).unwrap_or_default());
        line.push(b'\n');
        Ok(line)
    }
}

/// The rest of a line: readings of a bucket.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rest<'a> {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    replaces: BTreeMap<i64, BTreeMap<Metric, f64>>,
    device_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a RawValue>,
    readings: Vec<LineReading>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LineReading {
    ts: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    measurement_bytes: Option<usize>,
    values: BTreeMap<Metric, f64>,
}

/// The device of a line, read without the rest of the line.
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
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    replaces: BTreeMap<i64, BTreeMap<String, Box<RawValue>>>,
    device_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
    readings: Vec<OwnedReading>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnedReading {
    ts: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    measurement_bytes: Option<u8>,
    values: BTreeMap<String, Box<RawValue>>,
}

/// The lines of a refused bucket, with their ends.
///
/// `replaced` has the stored values that the bucket was to replace.
///
/// A line ends at [`READINGS_PER_LINE`] or [`BYTES_PER_LINE`], so that several lines fit into one request. It
/// ends between two instants.
pub(super) fn lines_of(
    write: &BucketWrite,
    replaced: &Contents,
    reason: &str,
    detail: &str,
    now_ms: i64,
) -> serde_json::Result<Vec<Vec<u8>>> {
    let head = Head { refused_at: &rfc3339(now_ms), reason, detail };
    let metadata = write.metadata.as_deref();
    let metadata = metadata.and_then(|text| RawValue::from_string(on_one_line(text).into_owned()).ok());
    let line_of = |readings: Vec<LineReading>| {
        let (Some(first), Some(last)) = (readings.first(), readings.last()) else { return Ok(None) };
        let instants = first.ts..=last.ts;
        let replaces = readings_of(write, replaced).filter(|reading| instants.contains(&reading.ts));
        let rest = Rest {
            replaces: replaces.map(|reading| (reading.ts, reading.values)).collect(),
            device_id: &write.device,
            metadata: metadata.as_deref(),
            readings,
        };
        head.line(&serde_json::to_vec(&rest)?).map(Some)
    };
    let (mut lines, mut readings, mut bytes) = (Vec::new(), Vec::new(), 0);
    for reading in readings_of(write, &write.contents) {
        let pieces: Vec<LineReading> = pieces_of(reading).collect();
        if readings.len() + pieces.len() > READINGS_PER_LINE || bytes >= BYTES_PER_LINE {
            lines.extend(line_of(std::mem::take(&mut readings))?);
            bytes = 0;
        }
        let metrics = pieces.iter().flat_map(|piece| piece.values.keys());
        bytes += metrics.map(|metric| metric.len() + NUMBER_BYTES).sum::<usize>();
        readings.extend(pieces);
    }
    lines.extend(line_of(readings)?);
    Ok(lines)
}

/// Returns the readings of `contents`, which are of the hour of `write`.
fn readings_of<'c>(write: &BucketWrite, contents: &'c Contents) -> impl Iterator<Item = LineReading> + use<'c> {
    let hour = write.hour;
    contents.readings().map(move |reading| LineReading {
        ts: hour.instant_ms(reading.offset),
        measurement_bytes: None,
        values: reading.samples.iter().map(|sample| (contents.metric_of(sample).clone(), sample.value)).collect(),
    })
}

/// Divides a reading into those that the API takes: they have not too many metrics, and the measurements of
/// these have the same length.
fn pieces_of(LineReading { ts, values, .. }: LineReading) -> impl Iterator<Item = LineReading> {
    let mut parts: BTreeMap<Option<usize>, BTreeMap<Metric, f64>> = BTreeMap::new();
    for (metric, value) in values {
        parts.entry(metric.measurement().map(str::len)).or_default().insert(metric, value);
    }
    parts.into_iter().flat_map(move |(measurement_bytes, values)| {
        divided(values, METRICS_PER_READING).map(move |values| LineReading { ts, measurement_bytes, values })
    })
}

/// Divides values into groups of at most `max`.
fn divided<K: Ord, V>(values: BTreeMap<K, V>, max: usize) -> impl Iterator<Item = BTreeMap<K, V>> {
    let mut values = values.into_iter();
    std::iter::from_fn(move || {
        let group: BTreeMap<K, V> = values.by_ref().take(max).collect();
        (!group.is_empty()).then_some(group)
    })
}

/// Divides the readings of a line that have more than `max` values.
///
/// A line of forwarding has readings as they were accepted, and older lines have an instant as one reading.
/// `None`: no reading has more, or the line is no dead letter.
pub fn divide_readings(line: &[u8], max: usize) -> Option<Vec<u8>> {
    let mut letter: OwnedLine = serde_json::from_slice(line).ok()?;
    if letter.readings.iter().all(|reading| reading.values.len() <= max) {
        return None;
    }
    let pieces = letter.readings.into_iter().flat_map(|OwnedReading { ts, measurement_bytes, values }| {
        divided(values, max).map(move |values| OwnedReading { ts, measurement_bytes, values })
    });
    letter.readings = pieces.collect();
    serde_json::to_vec(&letter).ok()
}

/// Returns what a deletion leaves of a line, and the number of readings that it removes. A line that is no
/// dead letter stays as it is.
pub(super) fn without(line: &[u8], deletion: &Deletion) -> (Change, u64) {
    if line.starts_with(b" ") {
        return (Change::Remove, 0); // an earlier deletion has removed it in place
    }
    // Most lines are of other devices, and are not parsed as a whole.
    let is_of_device = serde_json::from_slice::<DeviceOf<'_>>(line).is_ok_and(|of| *of.device_id == *deletion.device);
    let Some(mut letter) = is_of_device.then(|| serde_json::from_slice::<OwnedLine>(line).ok()).flatten() else {
        return (Change::Keep, 0);
    };
    let (mut deleted, mut last) = (0, None);
    letter.readings.retain_mut(|reading| {
        if !deletion.has_instant(reading.ts) {
            return true;
        }
        let before = reading.values.len();
        reading.values.retain(|metric, _| !deletion.series.matches(metric));
        if reading.values.len() < before && last.replace(reading.ts) != Some(reading.ts) {
            deleted += 1; // once for all readings of the instant, which are beside each other
        }
        !reading.values.is_empty()
    });
    letter.replaces.retain(|ts_ms, values| {
        values.retain(|metric, _| !(deletion.has_instant(*ts_ms) && deletion.series.matches(metric)));
        !values.is_empty()
    });
    match (deleted, letter.readings.is_empty()) {
        (0, _) => (Change::Keep, 0),
        (_, true) => (Change::Remove, deleted),
        (_, false) => match serde_json::to_vec(&letter) {
            Ok(line) => (Change::Replace(line), deleted),
            Err(_) => (Change::Keep, 0),
        },
    }
}
