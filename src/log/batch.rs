//! Batches: the payload of a record.

use std::hash::BuildHasher;
use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// The most bytes that the payload of a record takes, whatever the settings are. Every length and offset in a
/// record is far below what its field holds.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 20;

/// The accepted readings of one request or datagram, encoded as the payload of one record.
///
/// # Grammar
/// Little-endian throughout.
/// ```text
/// payload  = names_at:u32 group* names        names_at: offset of `names` in the payload
/// group    = owner count:u32 reading{count}
/// owner    = device metadata | 0:u8 group_at:u32      group_at: offset of an earlier group, whose owner it is
/// device   = len:u8 bytes                     1 to 128 bytes
/// metadata = len:u32 bytes                    the text of a JSON object; len 0: none
/// reading  = ts_ms:i64 count:u16 value{count}       at least one value
/// value    = name:u16 number:f64              name: index into `names`
/// names    = count:u16 name{count}
/// name     = len:u8 bytes                     a metric name, 1 to 128 bytes
/// ```
/// The owner of the earlier group stands there in full. So a device and its metadata stand once in a payload,
/// however often a request changes between devices. Payloads in which every owner stands in full, as they
/// were written at first, obey the same grammar.
///
/// A payload takes at most 2 bytes for each byte of the body that it was made of, 20 for `SenML` with long
/// base names, and 129 for each metric name, of which there are at most 65,535.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    payload: Vec<u8>,
    readings: u32,
}

impl Batch {
    /// The encoded payload. It has at most [`MAX_PAYLOAD_BYTES`].
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
    max_bytes: usize,
    readings: u32,
    group: Option<Group>,
    names: Names,
    /// By the number of an owner, where its first group begins; 0: it has none.
    owners: Vec<u32>,
}

/// The group that is being written: where its parts stand in the payload.
#[derive(Debug)]
struct Group {
    owner: Option<u32>,
    /// Where the group begins whose owner stands in full.
    start: u32,
    device: Range<usize>,
    metadata: Range<usize>,
    count_at: usize,
    count: u32,
}

/// A reading is not in the batch, because it has no room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// Its metric names are too many.
    #[error("a request names at most 65,535 different metrics")]
    TooManyNames,
    /// Its payload would be too long.
    #[error("the readings of a request take at most {0} bytes in the log; split the request")]
    TooLarge(usize),
    /// A device id, metadata, a metric name or the values of a reading are longer than the format allows.
    #[error("the reading is larger than a record of the log can hold")]
    TooLong,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new(MAX_PAYLOAD_BYTES)
    }
}

impl BatchBuilder {
    /// Makes a batch of at most `max_bytes`, and at most [`MAX_PAYLOAD_BYTES`].
    pub fn new(max_bytes: usize) -> Self {
        Self {
            payload: vec![0; 4],
            max_bytes: max_bytes.min(MAX_PAYLOAD_BYTES),
            readings: 0,
            group: None,
            names: Names::default(),
            owners: Vec::new(),
        }
    }

    /// How many readings were pushed.
    pub const fn readings(&self) -> u32 {
        self.readings
    }

    /// Adds a reading. The device id and the names must have passed their checks.
    ///
    /// # Errors
    /// When the batch has no room for it. The reading is not in the batch then.
    pub fn push<'a>(
        &mut self,
        device: &str,
        metadata: Option<&str>,
        ts_ms: i64,
        values: impl ExactSizeIterator<Item = (&'a str, f64)>,
    ) -> Result<(), PushError> {
        self.push_of(None, device, metadata, ts_ms, values)
    }

    /// Adds a reading whose device and metadata have this number: what has the same number is the same, until
    /// [`BatchBuilder::forget_owners`].
    ///
    /// # Errors
    /// As [`BatchBuilder::push`].
    pub fn push_of<'a>(
        &mut self,
        owner: Option<u32>,
        device: &str,
        metadata: Option<&str>,
        ts_ms: i64,
        values: impl ExactSizeIterator<Item = (&'a str, f64)>,
    ) -> Result<(), PushError> {
        let start = self.payload.len();
        let pushed = self.try_push(owner, device, metadata, ts_ms, values);
        match pushed {
            Ok(Some(opened)) => {
                self.close_group();
                self.note_owner(&opened);
                self.group = Some(opened);
            }
            Ok(None) => {}
            Err(error) => {
                self.payload.truncate(start);
                return Err(error);
            }
        }
        self.readings += 1;
        if let Some(group) = &mut self.group {
            group.count += 1;
        }
        Ok(())
    }

    /// Numbers of owners that come from now on are others.
    pub fn forget_owners(&mut self) {
        self.owners.clear();
        if let Some(group) = &mut self.group {
            group.owner = None;
        }
    }

    /// The finished batch.
    #[must_use]
    pub fn finish(mut self) -> Batch {
        self.close_group();
        let names_at = offset(self.payload.len());
        self.payload[..4].copy_from_slice(&names_at.to_le_bytes());
        let names = u16::try_from(self.names.places.len()).expect("more have no index");
        self.payload.extend_from_slice(&names.to_le_bytes());
        self.payload.extend_from_slice(&self.names.bytes);
        debug_assert!(self.payload.len() <= self.max_bytes || self.readings == 0);
        Batch { payload: self.payload, readings: self.readings }
    }

    /// Appends a reading, and returns the group that it opens, if it opens one. What an error leaves behind
    /// is to be cut off.
    fn try_push<'a>(
        &mut self,
        owner: Option<u32>,
        device: &str,
        metadata: Option<&str>,
        ts_ms: i64,
        values: impl ExactSizeIterator<Item = (&'a str, f64)>,
    ) -> Result<Option<Group>, PushError> {
        let continues = self.group.as_ref().is_some_and(|group| self.continues(group, owner, device, metadata));
        let opened = if continues { None } else { Some(self.open_group(owner, device, metadata)?) };
        self.payload.extend_from_slice(&ts_ms.to_le_bytes());
        let count = u16::try_from(values.len()).map_err(|_| PushError::TooLong)?;
        self.payload.extend_from_slice(&count.to_le_bytes());
        for (at, (name, value)) in values.enumerate() {
            let name = self.names.index(name, at)?;
            self.payload.extend_from_slice(&name.to_le_bytes());
            self.payload.extend_from_slice(&value.to_le_bytes());
        }
        if self.payload.len() + self.names.encoded_bytes() > self.max_bytes {
            return Err(PushError::TooLarge(self.max_bytes));
        }
        Ok(opened)
    }

    fn continues(&self, group: &Group, owner: Option<u32>, device: &str, metadata: Option<&str>) -> bool {
        self.payload[group.device.clone()] == *device.as_bytes()
            && (owner.is_some() && owner == group.owner
                || metadata.is_none_or(|text| self.payload[group.metadata.clone()] == *text.as_bytes()))
    }

    fn open_group(&mut self, owner: Option<u32>, device: &str, metadata: Option<&str>) -> Result<Group, PushError> {
        let metadata = metadata.unwrap_or_default();
        let same = owner.and_then(|owner| self.group_of(owner, device, metadata));
        let (start, device, metadata) = if let Some((start, device, metadata)) = same {
            self.payload.push(0);
            self.payload.extend_from_slice(&start.to_le_bytes());
            (start, device, metadata)
        } else {
            let start = offset(self.payload.len());
            self.payload.push(u8::try_from(device.len()).map_err(|_| PushError::TooLong)?);
            let device = append(&mut self.payload, device.as_bytes());
            let metadata_bytes = u32::try_from(metadata.len()).map_err(|_| PushError::TooLong)?;
            self.payload.extend_from_slice(&metadata_bytes.to_le_bytes());
            (start, device, append(&mut self.payload, metadata.as_bytes()))
        };
        let count_at = append(&mut self.payload, &[0; 4]).start;
        Ok(Group { owner, start, device, metadata, count_at, count: 0 })
    }

    /// The group in which this owner stands in full: where it begins, its device and its metadata. What the
    /// owner's number promises is checked as far as that is cheap.
    fn group_of(&self, owner: u32, device: &str, metadata: &str) -> Option<(u32, Range<usize>, Range<usize>)> {
        let start = self.owners.get(owner as usize).copied().filter(|&start| start > 0)?;
        let device_at = start as usize + 1;
        let device_at = device_at..device_at + device.len();
        let metadata_at = device_at.end + 4;
        let metadata_at = metadata_at..metadata_at + metadata.len();
        let is_it = usize::from(self.payload[start as usize]) == device.len()
            && self.payload.get(device_at.clone())? == device.as_bytes()
            && self.payload.get(device_at.end..metadata_at.start)? == u32::try_from(metadata.len()).ok()?.to_le_bytes();
        is_it.then_some((start, device_at, metadata_at))
    }

    fn note_owner(&mut self, group: &Group) {
        let Some(owner) = group.owner.map(|owner| owner as usize) else { return };
        if self.owners.len() <= owner {
            self.owners.resize(owner + 1, 0);
        }
        self.owners[owner] = group.start;
    }

    fn close_group(&mut self) {
        if let Some(group) = self.group.take() {
            self.payload[group.count_at..group.count_at + 4].copy_from_slice(&group.count.to_le_bytes());
        }
    }
}

/// An offset into a payload, which has at most [`MAX_PAYLOAD_BYTES`].
fn offset(at: usize) -> u32 {
    u32::try_from(at).expect("a payload is far shorter than 4 GiB")
}

fn append(to: &mut Vec<u8>, bytes: &[u8]) -> Range<usize> {
    let start = to.len();
    to.extend_from_slice(bytes);
    start..to.len()
}

/// The metric names of a batch. Readings of one kind name the same metrics in the same order, so the name at
/// the same place of the reading before is tried first; the table is for the rest.
#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
    places: Vec<(u32, u8)>,
    table: HashTable<u16>,
    hasher: RandomState,
}

impl Names {
    /// How many bytes the names take in the payload.
    fn encoded_bytes(&self) -> usize {
        2 + self.bytes.len()
    }

    fn index(&mut self, name: &str, hint: usize) -> Result<u16, PushError> {
        if let Some(&place) = self.places.get(hint)
            && slice(&self.bytes, place) == name.as_bytes()
        {
            return u16::try_from(hint).map_err(|_| PushError::TooManyNames);
        }
        let hash = self.hasher.hash_one(name.as_bytes());
        if let Some(&known) = self.table.find(hash, |&known| self.name(known) == name.as_bytes()) {
            return Ok(known);
        }
        let index = u16::try_from(self.places.len()).ok().filter(|&index| index < u16::MAX);
        let index = index.ok_or(PushError::TooManyNames)?;
        let len = u8::try_from(name.len()).map_err(|_| PushError::TooLong)?;
        self.bytes.push(len);
        self.places.push((offset(self.bytes.len()), len));
        self.bytes.extend_from_slice(name.as_bytes());
        let (bytes, places, hasher) = (&self.bytes, &self.places, &self.hasher);
        self.table.insert_unique(hash, index, |&known| hasher.hash_one(slice(bytes, places[usize::from(known)])));
        Ok(index)
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
    use crate::log::batch_view::{BadPayload, BatchView, Step};

    type Flat = (String, Option<String>, i64, Vec<(String, f64)>);

    fn unpack(payload: &[u8]) -> Result<Vec<Flat>, BadPayload> {
        let view = BatchView::new(payload)?;
        let names = view.names().to_vec();
        let (mut of_group, mut flat) = ((String::new(), None), Vec::new());
        for step in view.steps() {
            match step? {
                Step::Group { device, metadata } => of_group = (device.to_owned(), metadata.map(str::to_owned)),
                Step::Reading { ts_ms, values } => {
                    let values = values.map(|(name, value)| (names[usize::from(name)].to_owned(), value)).collect();
                    flat.push((of_group.0.clone(), of_group.1.clone(), ts_ms, values));
                }
            }
        }
        Ok(flat)
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
        fn owners_that_come_again_come_out_as_they_went_in(
            devices in prop::collection::vec(("[ab]{1,128}", prop::option::of("\\{[xy]{0,300}\\}")), 1..6),
            readings in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<i64>()), 0..60),
        ) {
            let (mut builder, mut plain) = (BatchBuilder::default(), BatchBuilder::default());
            for (device, is_numbered, ts_ms) in &readings {
                let number = device.index(devices.len());
                let (device, metadata) = &devices[number];
                let values = || [("m", 1.0)].into_iter();
                let owner = is_numbered.then_some(number as u32);
                builder.push_of(owner, device, metadata.as_deref(), *ts_ms, values()).unwrap();
                plain.push(device, metadata.as_deref(), *ts_ms, values()).unwrap();
            }
            let (batch, plain) = (builder.finish(), plain.finish());
            prop_assert!(batch.payload().len() <= plain.payload().len());
            prop_assert_eq!(unpack(batch.payload()).unwrap(), unpack(plain.payload()).unwrap());
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
        assert_eq!(builder.push("b", None, 0, [("more", 1.0)].into_iter()), Err(PushError::TooManyNames));
        builder.push("a", None, 1, [("7", 2.0)].into_iter()).unwrap();
        let flat = unpack(builder.finish().payload()).unwrap();
        assert_eq!(flat.len(), names.len() + 1);
        assert!(flat.iter().all(|(device, ..)| device == "a"));
    }

    /// Written before owners were referred to.
    const GOLDEN_1: &str = "470000000161070000007b2278223a317d01000000010000000000000001000000000000000000f03f01620000000001 \
        0000000200000000000000010001000000000000000040020001740175";

    const GOLDEN_2: &str = "640000000161070000007b2278223a317d01000000010000000000000001000000000000000000f03f01620000000001 \
        000000020000000000000001000100000000000000004000040000000100000001000000000000000100000000000000 \
        0000f03f020001740175";

    #[test]
    fn payloads_of_all_versions_stay_readable() {
        let flat = |device: &str, metadata: Option<&str>, ts_ms, name: &str, value| {
            (device.to_owned(), metadata.map(str::to_owned), ts_ms, vec![(name.to_owned(), value)])
        };
        let (first, second) = (flat("a", Some("{\"x\":1}"), 1, "t", 1.0), flat("b", None, 2, "u", 2.0));
        assert_eq!(unpack(&bytes(GOLDEN_1)), Ok(vec![first.clone(), second.clone()]));
        let mut builder = BatchBuilder::default();
        for (owner, (device, metadata, ts_ms, values)) in [(0, &first), (1, &second), (0, &first)] {
            let values = values.iter().map(|(name, value)| (name.as_str(), *value));
            builder.push_of(Some(owner), device, metadata.as_deref(), *ts_ms, values).unwrap();
        }
        let payload = builder.finish().payload;
        assert_eq!(payload, bytes(GOLDEN_2));
        assert_eq!(unpack(&payload), Ok(vec![first.clone(), second, first]));
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.chars().filter_map(|digit| Some(digit.to_digit(16)? as u8)).collect();
        digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    #[test]
    fn a_batch_refuses_what_would_make_it_too_large() {
        let mut builder = BatchBuilder::new(100);
        let values = || [("temp", 1.0)].into_iter();
        let mut pushed = 0;
        let refused = loop {
            match builder.push("device", None, 0, values()) {
                Ok(()) => pushed += 1,
                Err(error) => break error,
            }
        };
        assert_eq!((refused, pushed), (PushError::TooLarge(100), 3));
        let metadata = "x".repeat(100);
        assert_eq!(builder.push("other", Some(&metadata), 0, values()), Err(PushError::TooLarge(100)));
        let batch = builder.finish();
        assert!(batch.payload().len() <= 100);
        assert_eq!(unpack(batch.payload()).unwrap().len(), 3);
    }

    #[test]
    fn lengths_that_do_not_fit_are_errors() {
        let mut builder = BatchBuilder::default();
        let values = || [("m", 1.0)].into_iter();
        assert_eq!(builder.push(&"d".repeat(256), None, 0, values()), Err(PushError::TooLong));
        let name = "m".repeat(256);
        assert_eq!(builder.push("d", None, 0, [(name.as_str(), 1.0)].into_iter()), Err(PushError::TooLong));
        let many = vec![("m", 1.0); usize::from(u16::MAX) + 1];
        assert_eq!(builder.push("d", None, 0, many.into_iter()), Err(PushError::TooLong));
        let metadata = "x".repeat(MAX_PAYLOAD_BYTES);
        assert_eq!(builder.push("d", Some(&metadata), 0, values()), Err(PushError::TooLarge(MAX_PAYLOAD_BYTES)));
        builder.push("d", None, 0, values()).unwrap();
        assert_eq!(unpack(builder.finish().payload()).unwrap().len(), 1);
    }
}
