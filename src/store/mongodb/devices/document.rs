//! The document of a device: its fields, written and read.

use bson::{DateTime, Document, RawBsonRef, RawDocument, doc};
use serde_json::{Map, Value};

use super::super::decode::{
    DecodeError, check_version, document_in, elements, expect_version, instant_ms, integer_in, text, values_of,
};
use super::super::encode::Encoder;
use super::super::{metadata, names};
use crate::model::{Day, Hour, Metric};
use crate::store::device_index::MAX_SERIES;
use crate::store::{DeviceMetadata, DeviceSeries, DeviceSummary};

/// The schema version of the documents that this program writes and reads.
pub(super) const SCHEMA_VERSION: i32 = 1;

/// The field with the start of the day [`DeviceSummary::removed_until`].
pub(super) const REMOVED_UNTIL: &str = "removedUntil";

/// Writes the `_id` and the shard key of a device: the fields of its document, or of a filter that matches
/// it.
pub(super) fn encode_id(fields: &mut Encoder, device: &str) {
    fields.string("_id", device);
    fields.string("deviceId", device);
}

/// Writes the document of a new device.
pub(super) fn insert(document: &mut Encoder, note: &DeviceSummary, of_note: Option<(Hour, &Map<String, Value>)>) {
    encode_id(document, &note.device);
    document.int32("schemaVersion", SCHEMA_VERSION);
    document.datetime("firstTs", note.first_ts_ms);
    document.datetime("lastTs", note.last_ts_ms);
    if let Some((hour, object)) = of_note {
        metadata::encode(document, "metadata", object);
        document.datetime("metadataHour", hour.start_ms());
    }
    document.document("series", |series| {
        for DeviceSeries { metric, last_day } in &note.series {
            series.document(&*names::stored(metric), |of| {
                of.datetime("lastDay", last_day.start_ms());
                if metric.measurement().is_some() {
                    of.int32("measurement", measurement_length(metric));
                }
            });
        }
    });
    if note.has_more_series {
        document.boolean("moreSeries", true);
    }
}

/// Whether a document is an empty entry, which says nothing of its device yet.
pub(super) fn is_empty(document: &RawDocument) -> bool {
    matches!(document.get("firstTs"), Ok(None)) && expect_version(document, SCHEMA_VERSION).is_ok()
}

/// Writes the statement that adds a note to the document of its device, whatever the document has. With
/// metadata, it does nothing if the stored metadata is of a newer hour. `inserts` says whether it inserts a
/// missing document.
///
/// It costs the server three times as much as an update of [`super::change`].
pub(super) fn put(
    statement: &mut Encoder,
    note: &DeviceSummary,
    of_note: Option<(Hour, &Map<String, Value>)>,
    inserts: bool,
) {
    statement.document("q", |filter| {
        encode_id(filter, &note.device);
        if let Some((hour, _)) = of_note {
            // `$lte` would not match a document without metadata.
            filter.document("metadataHour", |is| is.document("$not", |is| is.datetime("$gt", hour.start_ms())));
        }
    });
    statement.array("u", |stages| {
        stages.document(0, |stage| stage.document("$set", |set| fields(set, note, of_note)));
        stages.document(1, |stage| stage.elements_of(&doc! { "$set": limit_series() }));
    });
    statement.boolean("upsert", inserts);
}

fn fields(set: &mut Encoder, note: &DeviceSummary, of_note: Option<(Hour, &Map<String, Value>)>) {
    set.int32("schemaVersion", SCHEMA_VERSION);
    set.document("firstTs", |is| one_of(is, "$min", "$firstTs", note.first_ts_ms));
    set.document("lastTs", |is| one_of(is, "$max", "$lastTs", note.last_ts_ms));
    if let Some((hour, object)) = of_note {
        set.document("metadata", |is| metadata::encode(is, "$literal", object));
        set.datetime("metadataHour", hour.start_ms());
    }
    for DeviceSeries { metric, last_day } in &note.series {
        let name = names::stored(metric);
        let (day, measurement) = (["series.", &name, ".lastDay"], ["series.", &name, ".measurement"]);
        set.document(day, |is| one_of(is, "$max", &format!("${}", day.concat()), last_day.start_ms()));
        if metric.measurement().is_some() {
            set.document(measurement, |is| {
                is.array("$max", |values| {
                    values.string(0, &format!("${}", measurement.concat()));
                    values.int32(1, measurement_length(metric));
                });
            });
        }
    }
    if note.has_more_series {
        set.boolean("moreSeries", true);
    }
}

/// The length of the measurement's name, which begins the name of the metric; 0 if it is not known.
pub(super) fn measurement_length(metric: &Metric) -> i32 {
    metric.measurement().map_or(0, |name| name.len() as i32)
}

/// Writes an expression: the lesser or the greater of a stored instant and `ms`.
///
/// `operator` is `$min` or `$max`.
fn one_of(is: &mut Encoder, operator: &str, stored: &str, ms: i64) {
    is.array(operator, |values| {
        values.string(0, stored);
        values.datetime(1, ms);
    });
}

/// The fields that limit the number of series. The series without a reading for longest are left out.
fn limit_series() -> Document {
    let max = MAX_SERIES as i32;
    let all = doc! { "$objectToArray": "$series" };
    let is_too_long = doc! { "$gt": [{ "$size": &all }, max] };
    let newest_first = doc! { "$sortArray": { "input": all, "sortBy": { "v.lastDay": -1, "k": 1 } } };
    let newest = doc! { "$arrayToObject": [{ "$slice": [newest_first, max] }] };
    doc! {
        "moreSeries": { "$cond": { "if": &is_too_long, "then": true, "else": "$moreSeries" } },
        "series": { "$cond": { "if": is_too_long, "then": newest, "else": "$series" } },
    }
}

/// Reads a document.
pub(super) fn decode(document: &RawDocument) -> Result<DeviceSummary, DecodeError> {
    let names = [
        "_id",
        "schemaVersion",
        "firstTs",
        "lastTs",
        "metadata",
        "metadataHour",
        "series",
        "moreSeries",
        REMOVED_UNTIL,
    ];
    let [id, version, first, last, metadata, hour, series, more, removed] = values_of(document, names)?;
    check_version(version, SCHEMA_VERSION)?;
    let metadata = match (metadata, hour) {
        (Some(RawBsonRef::Document(object)), Some(RawBsonRef::DateTime(hour))) => {
            let text = metadata::to_text(metadata::decode(object)?);
            Some(DeviceMetadata { hour: Hour::of(hour.timestamp_millis()), text })
        }
        _ => None,
    };
    let series = document_in(series, "series")?;
    let series: Result<Vec<DeviceSeries>, DecodeError> = elements(series).map(|of| decode_series(of?)).collect();
    let mut series = series?;
    series.sort_unstable_by(|a, b| a.metric.cmp(&b.metric));
    series.truncate(MAX_SERIES);
    Ok(DeviceSummary {
        device: text(id, "_id")?.into(),
        metadata,
        series,
        has_more_series: more.is_some(),
        first_ts_ms: instant_ms(first, "firstTs")?,
        last_ts_ms: instant_ms(last, "lastTs")?,
        removed_until: removed.and_then(RawBsonRef::as_datetime).map(day),
    })
}

fn decode_series((key, value): (&[u8], RawBsonRef<'_>)) -> Result<DeviceSeries, DecodeError> {
    let key = str::from_utf8(key).map_err(|_| DecodeError("the name of a series is not UTF-8".into()))?;
    let [last_day, measurement] = values_of(document_in(Some(value), key)?, ["lastDay", "measurement"])?;
    let measurement = match measurement {
        Some(_) => u8::try_from(integer_in(measurement, "measurement")?)
            .map_err(|_| DecodeError("the length of a measurement is out of range".into()))?,
        None => 0,
    };
    let metric = Metric::of_measurement(&names::original(key), measurement);
    Ok(DeviceSeries { metric, last_day: Day::of(Hour::of(instant_ms(last_day, "lastDay")?)) })
}

fn day(start: DateTime) -> Day {
    Day::of(Hour::of(start.timestamp_millis()))
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, doc};

    use super::*;

    #[test]
    fn a_document_is_read() {
        let at = DateTime::from_millis;
        let day = 86_400_000;
        let document = doc! {
            "_id": "d", "deviceId": "d", "schemaVersion": 1, "firstTs": at(5), "lastTs": at(2 * day),
            "removedUntil": at(day),
            "metadata": { "a\u{FF0E}b": 1 }, "metadataHour": at(7_200_000),
            "series": { "b": { "lastDay": at(2 * day) }, "a\u{FF0E}x{k=v}": { "lastDay": at(day), "measurement": 1 } },
        };
        let read = decode(&RawDocumentBuf::try_from(&document).unwrap()).unwrap();
        let series = |metric, day| DeviceSeries { metric, last_day: Day(day) };
        let expected = DeviceSummary {
            device: "d".into(),
            metadata: Some(DeviceMetadata { hour: Hour(2), text: r#"{"a.b":1}"#.into() }),
            series: vec![series("a.x{k=v}".into(), 1), series("b".into(), 2)],
            has_more_series: false,
            first_ts_ms: 5,
            last_ts_ms: 2 * day,
            removed_until: Some(Day(1)),
        };
        assert_eq!(read, expected);
        assert_eq!(read.series[0].metric.measurement(), Some("a"));
    }

    #[test]
    fn documents_that_are_no_devices_are_unreadable() {
        let at = DateTime::from_millis(0);
        for series in [doc! { "a": 1 }, doc! { "a": {} }, doc! { "a": { "lastDay": at, "measurement": 256 } }] {
            let document = doc! { "_id": "d", "schemaVersion": 1, "firstTs": at, "lastTs": at, "series": series };
            assert!(decode(&RawDocumentBuf::try_from(&document).unwrap()).is_err(), "{document}");
        }
    }
}
