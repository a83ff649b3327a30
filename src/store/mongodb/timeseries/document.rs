//! A measurement: `{ ts, meta: { deviceId, ...metadata }, temp: 22.4, hum: 40.0 }`.
//!
//! The server starts a new bucket of its own when the order of fields, the type of a value or `meta` changes.
//! So fields are in the order of their names, metrics without a value are left out, and every value is a
//! double.

use std::borrow::Cow;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use serde_json::{Map, Value};
use smallvec::SmallVec;

use super::super::decode::{DecodeError, finite};
use super::super::encode::Encoder;
use super::super::{metadata, names};
use crate::model::{Contents, Hour, Reading, Sample};
use crate::store::HourSamples;

/// The prefix of metrics that have the name of a field of every measurement. No metric name contains control
/// characters.
const ESCAPE: char = '\u{1F}';

/// The name of the field with the values of a metric.
pub(super) fn field_of(metric: &str) -> Cow<'_, str> {
    match metric {
        "_id" | "meta" => Cow::Owned(format!("{ESCAPE}{metric}")),
        metric => names::stored(metric),
    }
}

/// The metric of a field; `None` for the fields of every measurement.
pub(super) fn metric_of(field: &str) -> Option<Cow<'_, str>> {
    match field {
        "_id" | "ts" | "meta" => None,
        field => Some(field.strip_prefix(ESCAPE).map_or_else(|| names::original(field), Cow::Borrowed)),
    }
}

/// Writes the fields of `meta`. A key `deviceId` of the metadata is left out.
pub(super) fn encode_meta(meta: &mut Encoder, device: &str, metadata: &Map<String, Value>) {
    meta.string("deviceId", device);
    metadata::encode_fields(meta, metadata.iter().filter(|(key, _)| *key != "deviceId"));
}

/// The metadata in a `meta`, as the text of a JSON object; `None` if it has none.
pub(super) fn decode_meta(meta: &RawDocument) -> Result<Option<Arc<str>>, DecodeError> {
    let mut metadata = metadata::decode(meta)?;
    metadata.remove("deviceId");
    Ok((!metadata.is_empty()).then(|| metadata::to_text(metadata)))
}

/// The readings of an hour of a device as measurements, prepared for encoding.
pub(super) struct Measurements<'a> {
    hour: Hour,
    /// The field `meta`, encoded.
    meta: RawDocumentBuf,
    contents: Cow<'a, Contents>,
    /// The field of each metric, and its place in the order of fields.
    fields: Vec<(String, usize)>,
}

impl<'a> Measurements<'a> {
    pub(super) fn new(device: &str, hour: Hour, metadata: &Map<String, Value>, contents: Cow<'a, Contents>) -> Self {
        let meta = Encoder::build(|meta| encode_meta(meta, device, metadata));
        let mut fields: Vec<(String, usize)> =
            contents.metrics().iter().map(|metric| (field_of(metric).into_owned(), 0)).collect();
        let mut order: Vec<usize> = (0..fields.len()).collect();
        order.sort_by(|&a, &b| fields[a].0.cmp(&fields[b].0));
        for (place, &field) in order.iter().enumerate() {
            fields[field].1 = place;
        }
        Self { hour, meta, contents, fields }
    }

    /// The measurements in time order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Measurement<'_>> {
        self.contents.readings().map(|reading| Measurement { of: self, reading })
    }
}

/// One measurement, of the readings of an hour.
pub(super) struct Measurement<'a> {
    of: &'a Measurements<'a>,
    reading: Reading<'a>,
}

impl Measurement<'_> {
    pub(super) fn encode(&self, document: &mut Encoder) {
        let Self { of, reading } = self;
        document.datetime("ts", of.hour.instant_ms(reading.offset));
        document.raw_document("meta", &of.meta);
        let mut samples: SmallVec<[&Sample; 16]> = reading.samples.iter().collect();
        samples.sort_unstable_by_key(|sample| of.fields[sample.metric as usize].1);
        for sample in samples {
            document.double(&*of.fields[sample.metric as usize].0, sample.value);
        }
    }
}

/// Adds the values of a measurement to the samples of its hour.
///
/// If a value cannot be read, it adds all other values.
pub(super) fn add_measurement(
    measurement: &RawDocument,
    ts_ms: i64,
    into: &mut HourSamples,
) -> Result<(), DecodeError> {
    let offset = Hour::offset_of(ts_ms);
    let mut outcome = Ok(());
    for element in measurement {
        let (field, value) = element?;
        let field = field.as_str();
        let Some(name) = metric_of(field).filter(|_| !matches!(value, RawBsonRef::Null)) else { continue };
        if let Some(metric) = into.metric(field, |_| name) {
            match finite(value) {
                Ok(value) => into.push(offset, metric, value),
                Err(error) => outcome = Err(error),
            }
        }
    }
    outcome
}
