//! Batches: the payload of a record.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// The accepted readings of one request or datagram, encoded as the payload of one record.
///
/// # Grammar
/// Little-endian throughout.
/// ```text
/// payload  = names_at:u32 group* names        names_at: offset of `names` in the payload
/// group    = device metadata count:u32 reading{count}
/// device   = len:u8 bytes                     1 to 128 bytes
/// metadata = len:u32 bytes                    the text of a JSON object; len 0: none
/// reading  = ts_ms:i64 count:u16 value{count}       at least one value
/// value    = name:u16 number:f64              name: index into `names`
/// names    = count:u16 name{count}
/// name     = len:u8 bytes                     a metric name, 1 to 128 bytes
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    payload: Vec<u8>,
    readings: u32,
}

impl Batch {
    /// The encoded payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// How many readings it holds.
    pub const fn readings(&self) -> u32 {
        self.readings
    }
}

/// Encodes readings into a [`Batch`] as they come.
#[derive(Debug)]
pub struct BatchBuilder {
    payload: Vec<u8>,
    readings: u32,
    group: Option<Group>,
    names: Names,
}

/// The group that is being written: where its parts stand in the payload.
#[derive(Debug)]
struct Group {
    device: std::ops::Range<usize>,
    metadata: std::ops::Range<usize>,
    count_at: usize,
    count: u32,
}

/// A batch has room for 65,535 metric names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request names at most 65,535 different metrics")]
pub struct TooManyNames;

impl Default for BatchBuilder {
    fn default() -> Self {
        Self { payload: vec![0; 4], readings: 0, group: None, names: Names::default() }
    }
}

impl BatchBuilder {
    /// How many readings were pushed.
    pub const fn readings(&self) -> u32 {
        self.readings
    }

    /// Adds a reading. The device id and the names must have passed their checks.
    ///
    /// # Errors
    /// When the batch has no room for another metric name. The reading is not in the batch then.
    pub fn push<'a>(
        &mut self,
        device: &str,
        metadata: Option<&str>,
        ts_ms: i64,
        values: impl ExactSizeIterator<Item = (&'a str, f64)>,
    ) -> Result<(), TooManyNames> {
        let start = self.payload.len();
        let continues = self.group.as_ref().is_some_and(|group| self.continues(group, device, metadata));
        let opened = (!continues).then(|| self.open_group(device, metadata));
        self.payload.extend_from_slice(&ts_ms.to_le_bytes());
        self.payload.extend_from_slice(&(values.len() as u16).to_le_bytes());
        for (at, (name, value)) in values.enumerate() {
            let Some(name) = self.names.index(name, at) else {
                self.payload.truncate(start);
                return Err(TooManyNames);
            };
            self.payload.extend_from_slice(&name.to_le_bytes());
            self.payload.extend_from_slice(&value.to_le_bytes());
        }
        if let Some(opened) = opened {
            self.close_group();
            self.group = Some(opened);
        }
        self.readings += 1;
        if let Some(group) = &mut self.group {
            group.count += 1;
        }
        Ok(())
    }

    /// The finished batch.
    #[must_use]
    pub fn finish(mut self) -> Batch {
        self.close_group();
        let names_at = self.payload.len() as u32;
        self.payload[..4].copy_from_slice(&names_at.to_le_bytes());
        self.payload.extend_from_slice(&(self.names.places.len() as u16).to_le_bytes());
        self.payload.extend_from_slice(&self.names.bytes);
        Batch { payload: self.payload, readings: self.readings }
    }

    fn continues(&self, group: &Group, device: &str, metadata: Option<&str>) -> bool {
        self.payload[group.device.clone()] == *device.as_bytes()
            && metadata.is_none_or(|text| self.payload[group.metadata.clone()] == *text.as_bytes())
    }

    fn open_group(&mut self, device: &str, metadata: Option<&str>) -> Group {
        let metadata = metadata.unwrap_or_default();
        self.payload.push(device.len() as u8);
        let device = append(&mut self.payload, device.as_bytes());
        self.payload.extend_from_slice(&(metadata.len() as u32).to_le_bytes());
        let metadata = append(&mut self.payload, metadata.as_bytes());
        let count_at = append(&mut self.payload, &[0; 4]).start;
        Group { device, metadata, count_at, count: 0 }
    }

    fn close_group(&mut self) {
        if let Some(group) = self.group.take() {
            self.payload[group.count_at..group.count_at + 4].copy_from_slice(&group.count.to_le_bytes());
        }
    }
}

fn append(to: &mut Vec<u8>, bytes: &[u8]) -> std::ops::Range<usize> {
    let start = to.len();
    to.extend_from_slice(bytes);
    start..to.len()
}

/// The metric names of a batch. Readings of one kind name the same metrics in the same order, so the name at the same
/// place of the reading before is tried first; the table is for the rest.
#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
    places: Vec<(u32, u8)>,
    table: HashTable<u16>,
}

impl Names {
    fn index(&mut self, name: &str, hint: usize) -> Option<u16> {
        if hint < self.places.len() && self.name(hint as u16) == name.as_bytes() {
            return Some(hint as u16);
        }
        let hasher = FixedState::default();
        let hash = hasher.hash_one(name.as_bytes());
        if let Some(&known) = self.table.find(hash, |&known| self.name(known) == name.as_bytes()) {
            return Some(known);
        }
        let index = u16::try_from(self.places.len()).ok().filter(|&index| index < u16::MAX)?;
        self.bytes.push(name.len() as u8);
        self.places.push((self.bytes.len() as u32, name.len() as u8));
        self.bytes.extend_from_slice(name.as_bytes());
        let (bytes, places) = (&self.bytes, &self.places);
        self.table.insert_unique(hash, index, |&known| hasher.hash_one(slice(bytes, places[usize::from(known)])));
        Some(index)
    }

    fn name(&self, index: u16) -> &[u8] {
        slice(&self.bytes, self.places[usize::from(index)])
    }
}

fn slice(bytes: &[u8], (start, len): (u32, u8)) -> &[u8] {
    &bytes[start as usize..start as usize + usize::from(len)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::batch_view::{BadPayload, BatchView, Values, Visitor};

    type Flat = (String, Option<String>, i64, Vec<(String, f64)>);

    struct Unpack<'a> {
        names: Vec<&'a str>,
        group: (String, Option<String>),
        flat: Vec<Flat>,
    }

    impl<'a> Visitor<'a> for Unpack<'a> {
        fn group(&mut self, device: &'a str, metadata: Option<&'a str>) {
            self.group = (device.to_owned(), metadata.map(str::to_owned));
        }

        fn reading(&mut self, ts_ms: i64, values: Values<'a>) {
            let values = values.map(|(name, value)| (self.names[usize::from(name)].to_owned(), value)).collect();
            self.flat.push((self.group.0.clone(), self.group.1.clone(), ts_ms, values));
        }
    }

    fn unpack(payload: &[u8]) -> Result<Vec<Flat>, BadPayload> {
        let view = BatchView::new(payload)?;
        let mut unpack = Unpack { names: view.names().to_vec(), group: Default::default(), flat: Vec::new() };
        view.walk(&mut unpack)?;
        Ok(unpack.flat)
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_order(
            readings in prop::collection::vec(
                ("[ab]{1,2}", prop::option::of("\\{[xy]\\}"), any::<i64>(), prop::collection::vec(("[m-p]{1,2}", -1e9..1e9), 1..4)),
                0..40,
            )
        ) {
            let mut builder = BatchBuilder::default();
            for (device, metadata, ts_ms, values) in &readings {
                let values = values.iter().map(|(name, value)| (name.as_str(), *value));
                builder.push(device, metadata.as_deref(), *ts_ms, values).unwrap();
            }
            let batch = builder.finish();
            prop_assert_eq!(batch.readings() as usize, readings.len());
            let flat = unpack(batch.payload()).unwrap();
            prop_assert_eq!(flat.len(), readings.len());
            for (got, sent) in flat.iter().zip(&readings) {
                prop_assert_eq!((&got.0, got.2, &got.3), (&sent.0, sent.2, &sent.3));
                prop_assert!(sent.1.is_none() || got.1 == sent.1, "metadata stays with its reading");
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(payload in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = unpack(&payload);
        }
    }

    #[test]
    fn a_reading_without_values_breaks_the_grammar() {
        let mut builder = BatchBuilder::default();
        builder.push("a", None, 0, std::iter::empty::<(&str, f64)>()).unwrap();
        assert!(unpack(builder.finish().payload()).is_err());
    }

    #[test]
    fn a_reading_that_does_not_fit_leaves_no_trace() {
        let mut builder = BatchBuilder::default();
        let names: Vec<String> = (0..u32::from(u16::MAX)).map(|name| name.to_string()).collect();
        for name in &names {
            builder.push("a", None, 0, [(name.as_str(), 1.0)].into_iter()).unwrap();
        }
        assert_eq!(builder.push("b", None, 0, [("more", 1.0)].into_iter()), Err(TooManyNames));
        builder.push("a", None, 1, [("7", 2.0)].into_iter()).unwrap();
        let flat = unpack(builder.finish().payload()).unwrap();
        assert_eq!(flat.len(), names.len() + 1);
        assert!(flat.iter().all(|(device, ..)| device == "a"));
    }
}
