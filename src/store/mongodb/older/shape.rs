//! The shapes of the documents: which fields they have under which names.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bson::{RawArray, RawBsonRef, RawDocument};
use serde_json::{Map, Value};

use super::instant::{hour_of, kind_of, quoted, shown, text_of};
use super::metadata;
use super::readings::{Reader, Readings};
use super::stats::{self, Claim};
use super::{OlderBucket, Remark, ShapeRules};
use crate::model::{Hour, check_device_id, series};

/// The names of the field with the device.
const DEVICES: [&str; 6] = ["deviceId", "device_id", "device", "sensorId", "sensor_id", "sensor"];

/// The names of the field with the hour. If a document has several, they must agree.
const HOURS: [&str; 9] =
    ["bucket", "hour", "timestamp", "timestamp_hour", "start_date", "startDate", "bucketStart", "end_date", "endDate"];

/// The names of the array of readings.
const READINGS: [&str; 3] = ["readings", "measurements", "samples"];

/// The names of the field with the number of readings.
const COUNTS: [&str; 3] = ["readingCount", "count", "transaction_count"];

/// The names of the field with the metadata of the device.
const METADATA: [&str; 2] = ["metadata", "meta"];

/// The names of the fields of a document, which tell one way of writing buckets from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    device: &'static str,
    /// The name and the type of the hour.
    hour: Option<(&'static str, &'static str)>,
    readings: &'static str,
    /// The name of the field with the time in a reading.
    clock: &'static str,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, hour, readings, clock } = self;
        write!(f, "{{ {device}, ")?;
        if let Some((hour, kind)) = hour {
            write!(f, "{hour}: {kind}, ")?;
        }
        if *clock == "none" { write!(f, "{readings}: [] }}") } else { write!(f, "{readings}: [{{ {clock}, ... }}] }}") }
    }
}

/// The fields of a document by their meaning.
#[derive(Debug, Default)]
struct Fields<'a> {
    device: Option<(&'static str, Cow<'a, str>)>,
    /// The name, the type and the hour.
    hour: Option<(&'static str, &'static str, Hour)>,
    readings: Option<(&'static str, &'a RawArray)>,
    claims: Vec<Claim<'a>>,
    metadata: Map<String, Value>,
    /// The metric of the field `value` of the readings.
    metric: Option<&'a str>,
}

/// All names with a meaning, for the test of the page that lists them.
#[cfg(test)]
pub(super) fn names() -> Vec<&'static str> {
    [&DEVICES[..], &HOURS, &READINGS, &COUNTS, &METADATA].concat()
}

/// Reads a document by the rules. A remark says why it is not understood.
pub(super) fn understand(document: &RawDocument, rules: &ShapeRules) -> Result<OlderBucket, Remark> {
    let mut fields = Fields::default();
    for element in document {
        let (key, value) = element.map_err(|error| Remark::new("the document is no BSON", error.to_string()))?;
        let key = key.as_str();
        if key != "_id" && !rules.ignored.contains(key) {
            fields.add(key, value, rules)?;
        }
    }
    let Fields { device, hour, readings, claims, metadata, metric } = fields;
    let missing = |what: &str, names: &[&str]| {
        Remark::new(format!("the document has no {what}: {}", names.join(", ")), String::new())
    };
    let (device_field, device) = device.ok_or_else(|| missing("device", &DEVICES))?;
    let device = rules.device_id_case.apply(&device);
    check_device_id(&device).map_err(|error| {
        Remark::new(format!("{device_field} is no device ID"), format!("{}: {error}", quoted(&device)))
    })?;
    let (array, items) = readings.ok_or_else(|| missing("readings", &READINGS))?;
    if hour.is_none() && !HOURS.iter().any(|name| rules.ignored.contains(*name)) {
        let Remark { about, detail } = missing("hour", &HOURS);
        return Err(Remark::new(about + " (--ignore bucket: the times of the readings alone count)", detail));
    }
    let limits = &rules.limits;
    let reader = Reader {
        array,
        ignored: &rules.ignored,
        hour: hour.map(|(name, _, hour)| (name, hour)),
        metric,
        max_metrics: limits.max_metrics,
    };
    let items = items.into_iter().map(|item| item.map_err(|error| error.to_string()));
    let Readings { hours, clock, items, rejected, replaced } = reader.read(items);
    let mut findings: Vec<Remark> = Vec::new();
    if rejected.is_none() && replaced == 0 {
        findings.extend(stats::check(&claims, items, &hours));
    }
    if replaced > 0 {
        findings.push(Remark::new(
            "values have the instant and the metric of a later one, which stays",
            format!("{replaced} of them in {array}"),
        ));
    }
    let metadata = metadata::to_text(metadata, limits.max_metadata_bytes).map_err(refused_metadata)?;
    if metadata.is_some() && items == 0 {
        return Err(refused_metadata("it is stored with a reading, and there is none".to_owned()));
    }
    Ok(OlderBucket {
        device: Arc::from(&*device),
        metadata,
        hours,
        shape: Shape { device: device_field, hour: hour.map(|(name, kind, _)| (name, kind)), readings: array, clock },
        findings,
        rejected,
    })
}

impl<'a> Fields<'a> {
    fn add(&mut self, key: &'a str, value: RawBsonRef<'a>, rules: &ShapeRules) -> Result<(), Remark> {
        let wrong = |why: String| Remark::new(format!("the field {} is not understood", shown(key)), why);
        if rules.metadata.contains(key) {
            metadata::add(&mut self.metadata, key, value).map_err(refused_metadata)?;
        } else if let Some(name) = one_of(&DEVICES, key) {
            let device = text_of_device(value).map_err(wrong)?;
            if let Some((other, _)) = self.device.replace((name, device)) {
                let about = format!("the document has {other} and {name} (--metadata or --ignore names one of them)");
                return Err(Remark::new(about, String::new()));
            }
        } else if let Some(name) = one_of(&HOURS, key) {
            self.add_hour(name, kind_of(value), hour_of(value).map_err(wrong)?)?;
        } else if let Some(name) = one_of(&READINGS, key) {
            let RawBsonRef::Array(items) = value else {
                return Err(wrong(format!("is {}, and no array", kind_of(value))));
            };
            if let Some((other, _)) = self.readings.replace((name, items)) {
                let about = format!("the document has {other} and {name} (--ignore skips one of them)");
                return Err(Remark::new(about, String::new()));
            }
        } else if one_of(&COUNTS, key).is_some() {
            stats::add_count(key, value, &mut self.claims).map_err(wrong)?;
        } else if key == "stats" {
            stats::add_stats(value, &mut self.claims).map_err(|field| unknown(&field))?;
        } else if let (Some(_), RawBsonRef::Document(object)) = (one_of(&METADATA, key), value) {
            metadata::add_all(&mut self.metadata, object).map_err(refused_metadata)?;
        } else if let ("metric", RawBsonRef::String(metric)) = (key, value) {
            series::canonical(metric).map_err(|error| wrong(format!("is {}: {error}", quoted(metric))))?;
            self.metric = Some(metric);
        } else if key == "schemaVersion" && matches!(value, RawBsonRef::Int32(0) | RawBsonRef::Int64(0)) {
            // the version of these documents
        } else if !stats::add_of_metric(key, value, &mut self.claims).map_err(wrong)? {
            return Err(unknown(key));
        }
        Ok(())
    }

    fn add_hour(&mut self, name: &'static str, kind: &'static str, hour: Hour) -> Result<(), Remark> {
        let Some((other, _, known)) = self.hour else {
            self.hour = Some((name, kind, hour));
            return Ok(());
        };
        if known == hour {
            return Ok(());
        }
        let about = format!("{other} and {name} are of different hours (--ignore skips one of them)");
        Err(Remark::new(about, format!("{} and {}", text_of(known), text_of(hour))))
    }
}

fn one_of(names: &[&'static str], key: &str) -> Option<&'static str> {
    names.iter().copied().find(|name| *name == key)
}

fn refused_metadata(why: String) -> Remark {
    Remark::new("the metadata cannot be stored (--ignore FIELD skips it)", why)
}

fn unknown(field: &str) -> Remark {
    let field = shown(field);
    let keeps = if field.contains('.') { String::new() } else { format!("--metadata {field} keeps it, ") };
    Remark::new(format!("the field {field} has no known meaning ({keeps}--ignore {field} skips it)"), String::new())
}

/// The ID that a text, a number or an `ObjectId` stands for.
fn text_of_device(value: RawBsonRef<'_>) -> Result<Cow<'_, str>, String> {
    Ok(match value {
        RawBsonRef::String(text) => Cow::Borrowed(text),
        RawBsonRef::Int32(number) => Cow::Owned(number.to_string()),
        RawBsonRef::Int64(number) => Cow::Owned(number.to_string()),
        // mongosh writes whole numbers as doubles.
        RawBsonRef::Double(number) if number.fract() == 0.0 && number.abs() < 1e15 => Cow::Owned(number.to_string()),
        RawBsonRef::ObjectId(id) => Cow::Owned(id.to_hex()),
        other => return Err(format!("is {}, and no text, whole number or ObjectId", kind_of(other))),
    })
}
