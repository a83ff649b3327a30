//! The bucket document: its fields, written and read.
//!
//! Counts are int64, `part` and `schemaVersion` int32, every value, minimum, maximum and sum a double.
//! Readings are read back without serde, element by element, straight into samples.

use std::borrow::Cow;

use bson::{RawArray, RawBsonRef, RawDocument};
use serde_json::{Map, Value};

use super::super::decode::{DecodeError, expect_version, finite, integer};
use super::super::encode::{Encoder, Key};
use super::super::stats::encode_stats;
use super::super::{metadata, names};
use super::capacity::Size;
use crate::model::{Contents, Hour, HourOffset};
use crate::store::HourSamples;

/// The schema version of the documents that this program writes. It reads version 1 too, whose stats have
/// neither first nor last values.
pub(super) const SCHEMA_VERSION: i32 = 2;

/// One document of a bucket.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    /// 0 for the document that every bucket has, counted up for its overflow.
    pub(super) number: i32,
    /// The number of writes to it.
    pub(super) rev: i64,
    /// New instants are never added to it, but to the next part.
    pub(super) full: bool,
    /// The last instant of this part and of all parts before it.
    pub(super) last: HourOffset,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) contents: Contents,
}

impl Part {
    /// Reads the part of a bucket of the hour `hour`.
    pub(super) fn decode(document: &RawDocument, hour: Hour) -> Result<Self, DecodeError> {
        expect_version(document, SCHEMA_VERSION)?;
        let mut readings = HourSamples::all(hour);
        add_readings(document.get_array("readings")?, &mut readings)?;
        let metadata = match document.get("metadata")? {
            Some(RawBsonRef::Document(metadata)) => Some(metadata::decode(metadata)?),
            _ => None,
        };
        Ok(Self {
            number: i32::try_from(integer(document, "part")?)
                .map_err(|_| DecodeError("part is out of range".into()))?,
            rev: integer(document, "rev")?,
            full: is_full(document)?,
            last: offset(hour, document.get_datetime("lastTs")?.timestamp_millis())?,
            metadata,
            contents: readings.finish().0,
        })
    }

    /// The fields that change.
    pub(super) fn body(&self) -> Body<'_> {
        let Self { rev, full, last, ref metadata, ref contents, .. } = *self;
        Body { rev, full, last, metadata: metadata.as_ref(), size: Size::of(contents), contents }
    }
}

/// The fields of a part that change.
#[derive(Debug)]
pub(super) struct Body<'a> {
    pub(super) rev: i64,
    pub(super) full: bool,
    pub(super) last: HourOffset,
    pub(super) metadata: Option<&'a Map<String, Value>>,
    pub(super) size: Size,
    pub(super) contents: &'a Contents,
}

impl Body<'_> {
    /// Writes the fields: all but `_id`, `deviceId` and those of [`encode_constant_fields`].
    pub(super) fn encode(&self, fields: &mut Encoder, hour: Hour) {
        let (first, _) = self.contents.span().expect("a part is written for its readings");
        fields.int32("schemaVersion", SCHEMA_VERSION);
        fields.int64("rev", self.rev);
        if let Some(metadata) = self.metadata {
            metadata::encode(fields, "metadata", metadata);
        }
        if self.full {
            fields.boolean("full", true);
        }
        fields.int64("readingCount", self.size.readings as i64);
        fields.int64("bytes", self.size.bytes as i64);
        fields.datetime("firstTs", hour.instant_ms(first));
        fields.datetime("lastTs", hour.instant_ms(self.last));
        encode_stats(fields, "stats", &self.contents.stats(hour));
        encode_readings(fields, "readings", hour, self.contents);
    }
}

/// Writes the fields that never change, except `_id` and `deviceId`.
pub(super) fn encode_constant_fields(fields: &mut Encoder, device: &str, hour: Hour, part: i32) {
    fields.datetime("bucket", hour.start_ms());
    fields.int32("part", part);
    fields.datetime("createdAt", names::created_at_ms(device, hour));
}

/// Writes readings as an array of `{ ts, <metric>: value... }`, in time order.
pub(super) fn encode_readings(fields: &mut Encoder, key: impl Key, hour: Hour, contents: &Contents) {
    let keys: Vec<Cow<'_, str>> = contents.metrics().iter().map(|metric| names::stored(metric)).collect();
    fields.array(key, |readings| {
        for (at, reading) in contents.readings().enumerate() {
            readings.document(at, |element| {
                element.datetime("ts", hour.instant_ms(reading.offset));
                for sample in reading.samples {
                    element.double(&*keys[sample.metric as usize], sample.value);
                }
            });
        }
    });
}

/// Adds the readings of a document to those of its hour. If one of them cannot be read, it adds all the
/// others.
pub(super) fn add_readings(readings: &RawArray, into: &mut HourSamples) -> Result<(), DecodeError> {
    let mut outcome = Ok(());
    for reading in readings {
        if let Err(error) = add_reading(reading?, into) {
            outcome = Err(error);
        }
    }
    outcome
}

fn add_reading(reading: RawBsonRef<'_>, into: &mut HourSamples) -> Result<(), DecodeError> {
    let RawBsonRef::Document(reading) = reading else {
        return Err(DecodeError("a reading is not a document".into()));
    };
    let ts = reading.get("ts")?.and_then(RawBsonRef::as_datetime);
    let ts_ms = ts.ok_or_else(|| DecodeError("a reading has no ts".into()))?.timestamp_millis();
    let offset = offset(into.hour(), ts_ms)?;
    if into.window().contains(&offset) { add_values(reading, offset, into) } else { Ok(()) }
}

fn add_values(reading: &RawDocument, offset: HourOffset, into: &mut HourSamples) -> Result<(), DecodeError> {
    let mut outcome = Ok(());
    for element in reading {
        let (key, value) = element?;
        if key.as_str() != "ts"
            && let Some(metric) = into.metric(key.as_str(), names::original)
        {
            match finite(value) {
                Ok(value) => into.push(offset, metric, value),
                Err(error) => outcome = Err(error),
            }
        }
    }
    outcome
}

/// Whether the document is marked full.
pub(super) fn is_full(document: &RawDocument) -> Result<bool, DecodeError> {
    Ok(document.get("full")?.is_some())
}

fn offset(hour: Hour, ts_ms: i64) -> Result<HourOffset, DecodeError> {
    if Hour::of(ts_ms) == hour {
        Ok(Hour::offset_of(ts_ms))
    } else {
        Err(DecodeError("an instant is outside the bucket's hour".into()))
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, doc};

    use super::super::super::stats::decode_stats;
    use super::*;
    use crate::model::{Sample, SeriesFilter};
    use crate::store::metric_names::MetricNames;

    const HOUR: Hour = Hour(493_526);

    fn part() -> Part {
        let sample = |offset, metric, value| Sample { value, offset, metric };
        let contents = vec![sample(1, 0, 1.0), sample(1, 1, -2.5), sample(7, 1, 4.0)];
        Part {
            number: 2,
            rev: 3,
            full: true,
            last: 9,
            metadata: Some(metadata::parse(r#"{"floor":2}"#).unwrap()),
            contents: Contents::new(vec!["a.b".into(), "c".into()], contents),
        }
    }

    fn encoded(part: &Part) -> RawDocumentBuf {
        Encoder::build(|top| {
            encode_constant_fields(top, "d", HOUR, part.number);
            part.body().encode(top, HOUR);
        })
    }

    #[test]
    fn a_part_comes_back_as_it_was_written() {
        assert_eq!(Part::decode(&encoded(&part()), HOUR).unwrap(), part());
    }

    #[test]
    fn stored_stats_are_the_fold_of_the_readings() {
        let document = encoded(&part());
        let stats =
            decode_stats(document.get_document("stats").unwrap(), &mut MetricNames::new(&SeriesFilter::ALL)).unwrap();
        assert_eq!(stats, part().contents.stats(HOUR));
    }

    #[test]
    fn documents_that_are_no_buckets_are_unreadable() {
        for bad in [
            doc! {},
            doc! { "readings": [ 1 ] },
            doc! { "readings": [ { "lux": 1.0 } ] },
            doc! { "readings": [ { "ts": bson::DateTime::from_millis(0), "lux": 1.0 } ] },
            doc! { "readings": [ { "ts": bson::DateTime::from_millis(HOUR.start_ms()), "lux": "high" } ] },
        ] {
            assert!(Part::decode(&RawDocumentBuf::try_from(&bad).unwrap(), HOUR).is_err(), "{bad}");
        }
    }
}
