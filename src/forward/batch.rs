//! A batch of readings to forward, kept as JSON text.
//!
//! Bodies of requests and dead letters are made of pieces of this text.

use std::io::Write;
use std::ops::Range;

use crate::common::one_line::on_one_line;
use crate::log::batch::{BadPayload, BatchView, Step};

/// The most readings of a batch.
///
/// It is half the default of `ingest.max_readings_per_request`.
const MAX_READINGS: usize = 50_000;

/// Readings in the order of the log, as JSON text. Their numbers count from 0.
#[derive(Debug, Default)]
pub(super) struct Batch {
    texts: Vec<u8>,
    owners: Vec<Owner>,
    /// For each reading, the index of its owner and its place in `texts`.
    ///
    /// The text of a reading is `{"ts":1,"values":{"m":2.5}}`. `measurementBytes` precedes `values` if the
    /// names begin with a measurement.
    readings: Vec<(usize, Range<usize>)>,
}

/// The owner of readings: a device with its metadata, as places in `texts`.
#[derive(Debug)]
struct Owner {
    /// The place of the members for the device: `"deviceId":"d","metadata":{}`.
    text: Range<usize>,
    /// The place of the device ID as JSON: `"d"`.
    id: Range<usize>,
}

impl Batch {
    /// The number of readings.
    pub(super) const fn len(&self) -> usize {
        self.readings.len()
    }

    /// Whether the batch has no reading.
    pub(super) const fn is_empty(&self) -> bool {
        self.readings.is_empty()
    }

    /// Whether the batch has at least `max_bytes`, or the most readings of a batch.
    pub(super) const fn is_full(&self, max_bytes: usize) -> bool {
        self.texts.len() >= max_bytes || self.readings.len() >= MAX_READINGS
    }

    /// Removes all readings, and keeps the allocated memory.
    pub(super) fn clear(&mut self) {
        self.texts.clear();
        self.owners.clear();
        self.readings.clear();
    }

    /// Adds the readings of a record of the log.
    ///
    /// Each time the batch is full, it calls `on_full`, which must empty the batch or return an error.
    pub(super) fn push_record<E: From<BadPayload>>(
        &mut self,
        payload: &[u8],
        max_bytes: usize,
        mut on_full: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let BatchView { names, steps } = BatchView::new(payload)?;
        let mut owner = None;
        for step in steps {
            match step? {
                Step::Group { device, metadata } => owner = Some((device, metadata)),
                Step::Reading { ts_ms, values } => {
                    let Some((device, metadata)) = owner else { continue };
                    self.push_owner(device.as_str(), metadata);
                    let values = values.map(|(name, value)| (names[usize::from(name)], value));
                    let mut lengths = values.clone().map(|(name, _)| name.measurement_bytes);
                    let measurement_bytes = lengths.find(|&bytes| bytes > 0).unwrap_or(0);
                    self.push_reading(ts_ms, measurement_bytes, values.map(|(name, value)| (name.text, value)));
                    if self.is_full(max_bytes) {
                        on_full(self)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes this device the owner of the readings that are added from now on.
    pub(super) fn push_owner(&mut self, device: &str, metadata: Option<&str>) {
        let start = self.texts.len();
        self.texts.extend_from_slice(b"\"deviceId\":");
        let start_of_id = self.texts.len();
        serde_json::to_writer(&mut self.texts, device).expect("memory");
        let id = start_of_id..self.texts.len();
        if let Some(metadata) = metadata {
            self.texts.extend_from_slice(b",\"metadata\":");
            self.texts.extend_from_slice(on_one_line(metadata).as_bytes());
        }
        let is_same = self.owners.last().is_some_and(|last| self.texts[last.text.clone()] == self.texts[start..]);
        if is_same {
            self.texts.truncate(start);
        } else {
            self.owners.push(Owner { text: start..self.texts.len(), id });
        }
    }

    /// Adds a reading of the last owner. `measurement_bytes` is the length of the measurement that begins the
    /// names, or 0.
    pub(super) fn push_reading<'a>(
        &mut self,
        ts_ms: i64,
        measurement_bytes: u8,
        values: impl Iterator<Item = (&'a str, f64)>,
    ) {
        let start = self.texts.len();
        let text = &mut self.texts;
        write!(text, "{{\"ts\":{ts_ms},").expect("memory");
        if measurement_bytes > 0 {
            write!(text, "\"measurementBytes\":{measurement_bytes},").expect("memory");
        }
        text.extend_from_slice(b"\"values\":");
        let mut separator = b'{';
        for (series, value) in values {
            text.push(std::mem::replace(&mut separator, b','));
            serde_json::to_writer(&mut *text, series).expect("memory");
            text.push(b':');
            serde_json::to_writer(&mut *text, &value).expect("memory"); // the shortest text of this very number
        }
        text.extend_from_slice(b"}}");
        self.readings.push((self.owners.len() - 1, start..text.len()));
    }

    /// The readings with these numbers as NDJSON.
    ///
    /// Successive readings with the same owner share a line.
    pub(super) fn body(&self, readings: &[usize]) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.texts.len());
        for of_owner in readings.chunk_by(|&one, &next| self.readings[one].0 == self.readings[next].0) {
            self.append_object(&mut body, of_owner);
            body.push(b'\n');
        }
        body
    }

    /// Appends readings with the same owner, by their numbers, as one JSON object.
    pub(super) fn append_object(&self, to: &mut Vec<u8>, readings: &[usize]) {
        let Some(&first) = readings.first() else { return };
        to.push(b'{');
        to.extend_from_slice(&self.texts[self.owners[self.readings[first].0].text.clone()]);
        to.extend_from_slice(b",\"readings\":");
        let mut separator = b'[';
        for &reading in readings {
            to.push(std::mem::replace(&mut separator, b','));
            to.extend_from_slice(&self.texts[self.readings[reading].1.clone()]);
        }
        to.extend_from_slice(b"]}");
    }

    /// The device ID of a reading, as JSON.
    pub(super) fn device(&self, reading: usize) -> &[u8] {
        &self.texts[self.owners[self.readings[reading].0].id.clone()]
    }

    /// Whether two readings have the same owner: the same device and metadata.
    pub(super) fn share_owner(&self, one: usize, other: usize) -> bool {
        self.readings[one].0 == self.readings[other].0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::BatchBuilder;
    use crate::wire::readings_only::ReadingsOnly;
    use crate::wire::{Incoming, json};

    /// A reading as the log has it and as a server finds it in a body: device, metadata, instant, and the
    /// series with the bits of their values.
    type Found = (String, Option<String>, i64, Vec<(String, u64)>);

    fn parsed(body: &[u8]) -> Vec<Found> {
        let mut found = Vec::new();
        let mut sink = ReadingsOnly(|Incoming { device, metadata, ts_ms, values, .. }: Incoming<'_>| {
            let values = values.iter().map(|(name, value)| (name.to_string(), value.to_bits()));
            found.push((device.to_owned(), metadata.map(str::to_owned), ts_ms.unwrap(), values.collect()));
        });
        json::parse_lines(body, &json::Options::default(), &mut sink);
        found
    }

    fn record(readings: &[Found]) -> crate::log::Batch {
        let mut builder = BatchBuilder::default();
        for (device, metadata, ts_ms, values) in readings {
            let values = values.iter().map(|(name, bits)| (name.as_str(), f64::from_bits(*bits)));
            builder.push(device, metadata.as_deref(), *ts_ms, values).unwrap();
        }
        builder.finish()
    }

    fn pushed(readings: &[Found]) -> Batch {
        let mut batch = Batch::default();
        let full = |_: &mut Batch| -> Result<(), BadPayload> { panic!("it is not full") };
        batch.push_record(record(readings).payload(), usize::MAX, full).unwrap();
        batch
    }

    fn any_value() -> impl Strategy<Value = u64> {
        let some = [0.0, -0.0, 1.0, -1e-320, f64::MAX, f64::MIN_POSITIVE, 0.1, 1e23, 9_007_199_254_740_993.0];
        let finite = any::<f64>().prop_filter("admission accepts finite numbers", |value| value.is_finite());
        prop_oneof![prop::sample::select(some.to_vec()), finite].prop_map(f64::to_bits)
    }

    fn any_reading() -> impl Strategy<Value = Found> {
        let metadata = prop::option::of(prop::sample::select(vec![r#"{"floor":2}"#.to_owned(), "{}".to_owned()]));
        let series =
            prop::sample::select(vec!["m", "é\"x", "a{b=c}", r"a{b=C:\\,d=\{\=}", "v.w/x"]).prop_map(str::to_owned);
        let values = prop::collection::btree_map(series, any_value(), 1..4).prop_map(|all| all.into_iter().collect());
        let ts_ms = -62_167_219_200_000_i64..253_402_300_799_999;
        ("[a-c]{1,2}|t/[A-C]:1|\\PC\"\\\\|[é ]x", metadata, ts_ms, values)
    }

    proptest! {
        #[test]
        fn a_server_finds_in_a_body_what_the_log_has_bit_by_bit(
            readings in prop::collection::vec(any_reading(), 1..20), seed in any::<u64>(),
        ) {
            let mut readings = readings;
            for at in 1..readings.len() {
                // In a record, a reading without metadata has the metadata of the reading before, if both are
                // of one device.
                if readings[at].0 == readings[at - 1].0 && readings[at].1.is_none() {
                    readings[at].1 = readings[at - 1].1.clone();
                }
            }
            let batch = pushed(&readings);
            let all: Vec<usize> = (0..batch.len()).collect();
            prop_assert_eq!(parsed(&batch.body(&all)), readings.clone());
            let some: Vec<usize> = all.into_iter().filter(|at| seed >> (at % 64) & 1 == 1).collect();
            let expected: Vec<Found> = some.iter().map(|&at| readings[at].clone()).collect();
            prop_assert_eq!(parsed(&batch.body(&some)), expected);
        }
    }

    #[test]
    fn a_body_has_where_the_measurement_of_a_reading_ends() {
        let mut builder = BatchBuilder::default();
        let values = [("cpu", 1.0), ("cpu_idle{core=0}", 2.0)];
        builder.push_of(None, "d", None, 1, 3, values.into_iter()).unwrap();
        builder.push("d", None, 2, [("mem_free", 3.0)].into_iter()).unwrap();
        let mut batch = Batch::default();
        let full = |_: &mut Batch| -> Result<(), BadPayload> { panic!("it is not full") };
        batch.push_record(builder.finish().payload(), usize::MAX, full).unwrap();
        let mut found = Vec::new();
        let mut sink = ReadingsOnly(|Incoming { values, measurement_bytes, .. }: Incoming<'_>| {
            found.push(format!("{measurement_bytes} {values:?}"));
        });
        json::parse_lines(&batch.body(&[0, 1]), &json::Options::default(), &mut sink);
        assert_eq!(found, [r#"3 [("cpu", 1.0), ("cpu_idle{core=0}", 2.0)]"#, r#"0 [("mem_free", 3.0)]"#]);
    }

    #[test]
    fn metadata_on_several_lines_stays_in_one() {
        let of = |metadata: &str| vec![("d".to_owned(), Some(metadata.to_owned()), 1, vec![("m".to_owned(), 0)])];
        let batch = pushed(&of("{\r\n  \"floor\": 2\n}"));
        assert_eq!(parsed(&batch.body(&[0])), of("{    \"floor\": 2 }"));
    }

    #[test]
    fn a_record_larger_than_a_batch_becomes_several() {
        let readings: Vec<Found> = (0..100).map(|ts| ("d".to_owned(), None, ts, vec![("m".to_owned(), 0)])).collect();
        let (mut batch, mut sent) = (Batch::default(), Vec::new());
        let mut sizes = Vec::new();
        batch
            .push_record(record(&readings).payload(), 500, |batch| -> Result<(), BadPayload> {
                let all: Vec<usize> = (0..batch.len()).collect();
                sizes.push(batch.len());
                sent.extend(parsed(&batch.body(&all)));
                batch.clear();
                Ok(())
            })
            .unwrap();
        let rest: Vec<usize> = (0..batch.len()).collect();
        sent.extend(parsed(&batch.body(&rest)));
        assert!(sizes.len() > 3 && sizes.iter().all(|&size| size < 30), "{sizes:?}");
        assert_eq!(sent, readings);
    }
}
