//! The bucket document: its fields, written and read.
//!
//! Counts are int64, `part` and `schemaVersion` int32, every value, minimum, maximum and sum a double.
//! Readings are read back without serde, element by element, straight into samples. Only packed
//! documents have `control`, and only readable ones have `bytes`; `packed` has the columns of packed ones.

use std::borrow::Cow;

use bson::{RawArray, RawBsonRef, RawDocument};
use serde_json::{Map, Value};

use super::super::collection::CREATED_AT;
use super::super::decode::{DecodeError, expect_version, finite, integer};
use super::super::encode::{Encoder, Key};
use super::super::stats::encode_stats;
use super::super::{metadata, names};
use super::capacity::Size;
use super::packed::{Columns, encode_columns, is_dense};
use crate::config::BucketLayout;
use crate::model::{Contents, Hour, HourOffset};
use crate::store::HourSamples;

/// The schema version of documents of both layouts.
pub(super) const SCHEMA_VERSION: i32 = 1;

/// The fields that only readable documents have.
const READABLE_FIELDS: [&str; 2] = ["bytes", "readings"];

/// The fields that only packed documents have.
const PACKED_FIELDS: [&str; 2] = ["control", "data"];

/// The layout of a document, by the fields that only one layout has.
pub(super) fn layout_of(document: &RawDocument) -> Result<BucketLayout, DecodeError> {
    expect_version(document, SCHEMA_VERSION)?;
    match (document.get("bytes")?.is_some(), document.get("control")?.is_some()) {
        (true, false) => Ok(BucketLayout::Readable),
        (false, true) => Ok(BucketLayout::Packed),
        _ => Err(DecodeError("it has to have either bytes or control".into())),
    }
}

/// One document of a bucket.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    /// 0 for the first document of a bucket; 1, 2 and so on for its further documents.
    pub(super) number: i32,
    /// The layout in which the part is stored, or is to be written.
    pub(super) layout: BucketLayout,
    /// The number of writes to the document.
    pub(super) rev: i64,
    /// Whether new instants are never added to this part, but to the next one.
    pub(super) full: bool,
    /// Whether a deletion has removed some of its values.
    pub(super) deleted_from: bool,
    /// The last instant of this part and of all parts before it.
    pub(super) last: HourOffset,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) contents: Contents,
}

impl Part {
    /// Reads the part of a bucket of the hour `hour`.
    pub(super) fn decode(document: &RawDocument, hour: Hour) -> Result<Self, DecodeError> {
        if document.get_datetime("bucket")?.timestamp_millis() != hour.start_ms() {
            return Err(DecodeError("its bucket is not the hour of its _id".into()));
        }
        let mut readings = HourSamples::all(hour);
        StoredReadings::of(document)?.add_to(&mut readings)?;
        let metadata = match document.get("metadata")? {
            Some(RawBsonRef::Document(metadata)) => Some(metadata::decode(metadata)?),
            _ => None,
        };
        Ok(Self {
            number: i32::try_from(integer(document, "part")?)
                .map_err(|_| DecodeError("part is out of range".into()))?,
            layout: layout_of(document)?,
            rev: integer(document, "rev")?,
            full: is_full(document)?,
            deleted_from: is_deleted_from(document)?,
            last: offset(hour, document.get_datetime("lastTs")?.timestamp_millis())?,
            metadata,
            contents: readings.finish().0,
        })
    }

    /// Gives the part this layout. Readings that are too sparse for columns stay readable; the part is then
    /// full, so that nothing is appended to it.
    pub(super) fn take_layout(&mut self, layout: BucketLayout) {
        let suits = self.suits(layout);
        self.full |= !suits;
        self.layout = if suits { layout } else { BucketLayout::Readable };
    }

    /// Whether the part can be written in this layout.
    pub(super) fn suits(&self, layout: BucketLayout) -> bool {
        layout == BucketLayout::Readable || (!self.contents.is_empty() && is_dense(&self.contents))
    }

    /// The fields that a write of the part sets.
    pub(super) fn body(&self) -> Body<'_> {
        let Self { layout, rev, full, deleted_from, last, ref metadata, ref contents, .. } = *self;
        Body { layout, rev, full, deleted_from, last, metadata: metadata.as_ref(), size: Size::of(contents), contents }
    }
}

/// The fields of a part that a write sets: all that may change.
#[derive(Debug)]
pub(super) struct Body<'a> {
    pub(super) layout: BucketLayout,
    pub(super) rev: i64,
    pub(super) full: bool,
    pub(super) deleted_from: bool,
    pub(super) last: HourOffset,
    pub(super) metadata: Option<&'a Map<String, Value>>,
    pub(super) size: Size,
    pub(super) contents: &'a Contents,
}

impl Body<'_> {
    /// Writes the fields: all but `_id`, `deviceId` and those of [`encode_constant_fields`]. A part without
    /// readings is readable, and begins where it ends.
    pub(super) fn encode(&self, fields: &mut Encoder, hour: Hour) {
        let first = self.contents.span().map_or(self.last, |(first, _)| first);
        fields.int32("schemaVersion", SCHEMA_VERSION);
        fields.int64("rev", self.rev);
        if let Some(metadata) = self.metadata {
            metadata::encode(fields, "metadata", metadata);
        }
        if self.full {
            fields.boolean("full", true);
        }
        if self.deleted_from {
            fields.boolean("deletedFrom", true);
        }
        fields.int64("readingCount", self.size.readings as i64);
        fields.datetime("firstTs", hour.instant_ms(first));
        fields.datetime("lastTs", hour.instant_ms(self.last));
        encode_stats(fields, "stats", &self.contents.stats(hour));
        match self.layout {
            BucketLayout::Readable => {
                fields.int64("bytes", self.size.bytes as i64);
                encode_readings(fields, "readings", hour, self.contents);
            }
            BucketLayout::Packed => encode_columns(fields, hour, self.contents),
        }
    }

    /// Writes the operators that give a stored document these fields, whichever layout it had.
    pub(super) fn encode_update(&self, update: &mut Encoder, hour: Hour) {
        update.document("$set", |set| self.encode(set, hour));
        let others = match self.layout {
            BucketLayout::Readable => PACKED_FIELDS,
            BucketLayout::Packed => READABLE_FIELDS,
        };
        update.document("$unset", |unset| {
            for field in others {
                unset.string(field, "");
            }
            if self.contents.is_empty() && self.metadata.is_none() {
                unset.string("metadata", "");
            }
        });
    }
}

/// Writes the fields that never change, except `_id` and `deviceId`.
pub(super) fn encode_constant_fields(fields: &mut Encoder, device: &str, hour: Hour, part: i32) {
    fields.datetime("bucket", hour.start_ms());
    fields.int32("part", part);
    fields.datetime(CREATED_AT, names::created_at_ms(device, hour));
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

/// The readings of a document.
#[derive(Debug)]
pub(super) enum StoredReadings<'a> {
    Readable(&'a RawArray),
    Packed(Columns<'a>),
}

impl<'a> StoredReadings<'a> {
    pub(super) fn of(document: &'a RawDocument) -> Result<Self, DecodeError> {
        Ok(match layout_of(document)? {
            BucketLayout::Readable => Self::Readable(document.get_array("readings")?),
            BucketLayout::Packed => Self::Packed(Columns::of(document)?),
        })
    }

    /// Adds the readings to the samples of their hour.
    ///
    /// If some readings or values cannot be read, it adds all others.
    pub(super) fn add_to(&self, into: &mut HourSamples) -> Result<(), DecodeError> {
        match self {
            Self::Readable(readings) => add_readings(readings, into),
            Self::Packed(columns) => columns.add_to(into),
        }
    }
}

fn add_readings(readings: &RawArray, into: &mut HourSamples) -> Result<(), DecodeError> {
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

/// Whether a deletion has emptied the document. It has no stats then.
pub(super) fn is_emptied(document: &RawDocument) -> Result<bool, DecodeError> {
    Ok(document.get_document("stats")?.is_empty())
}

/// Whether the document is marked full.
pub(super) fn is_full(document: &RawDocument) -> Result<bool, DecodeError> {
    Ok(document.get("full")?.is_some())
}

/// Whether a deletion has removed values of the document.
pub(super) fn is_deleted_from(document: &RawDocument) -> Result<bool, DecodeError> {
    Ok(document.get("deletedFrom")?.is_some())
}

/// The offset of an instant into the hour of its bucket.
pub(super) fn offset(hour: Hour, ts_ms: i64) -> Result<HourOffset, DecodeError> {
    if Hour::of(ts_ms) == hour {
        Ok(Hour::offset_of(ts_ms))
    } else {
        Err(DecodeError("an instant is outside the bucket's hour".into()))
    }
}

#[cfg(test)]
mod tests {
    use bson::{Document, RawDocumentBuf, doc};

    use super::super::super::stats::decode_stats;
    use super::*;
    use crate::model::{Sample, SeriesFilter};
    use crate::store::metric_names::MetricNames;

    const HOUR: Hour = Hour(493_526);

    fn part(layout: BucketLayout) -> Part {
        let sample = |offset, metric, value| Sample { value, offset, metric };
        let contents = vec![sample(1, 0, 1.0), sample(1, 1, -2.5), sample(7, 1, 4.0)];
        Part {
            number: 2,
            layout,
            rev: 3,
            full: true,
            deleted_from: true,
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
        for part in [BucketLayout::Readable, BucketLayout::Packed].map(part) {
            assert_eq!(Part::decode(&encoded(&part), HOUR).unwrap(), part);
        }
    }

    #[test]
    fn an_update_removes_no_field_that_it_sets() {
        let emptied = Part { contents: Contents::default(), ..part(BucketLayout::Readable) };
        for part in [part(BucketLayout::Packed), Part { metadata: None, ..emptied.clone() }, emptied] {
            let update = Encoder::build(|update| part.body().encode_update(update, HOUR));
            let update = Document::try_from(update.as_ref()).unwrap();
            let [set, unset] = ["$set", "$unset"].map(|operator| update.get_document(operator).unwrap());
            assert!(unset.keys().all(|field| !set.contains_key(field)), "{update}");
            assert_eq!(unset.contains_key("metadata"), part.metadata.is_none());
        }
    }

    #[test]
    fn stored_stats_are_the_fold_of_the_readings() {
        for part in [BucketLayout::Readable, BucketLayout::Packed].map(part) {
            let document = encoded(&part);
            let stats = document.get_document("stats").unwrap();
            let stats = decode_stats(stats, &mut MetricNames::new(&SeriesFilter::ALL)).unwrap();
            assert_eq!(stats, part.contents.stats(HOUR));
        }
    }

    #[test]
    fn documents_that_are_no_buckets_are_unreadable() {
        for bad in [
            doc! {},
            doc! { "readings": [ 1 ] },
            doc! { "readings": [ { "lux": 1.0 } ] },
            doc! { "readings": [ { "ts": bson::DateTime::from_millis(0), "lux": 1.0 } ] },
            doc! { "readings": [ { "ts": bson::DateTime::from_millis(HOUR.start_ms()), "lux": "high" } ] },
            doc! { "schemaVersion": 1, "readings": [] },
            doc! { "schemaVersion": 1, "control": { "count": 0 } },
            doc! { "schemaVersion": 1, "control": { "count": 0 }, "bytes": 0_i64, "readings": [] },
        ] {
            assert!(Part::decode(&RawDocumentBuf::try_from(&bad).unwrap(), HOUR).is_err(), "{bad}");
        }
    }
}
