//! Batches: the payloads of records, their grammar, its writer and its reader.
//!
//! [`BatchBuilder`] encodes readings, one by one. A reading that does not fit leaves the batch as it was.
//! [`BatchView`] reads a payload in place, without copying it. It reports each breach of the grammar as
//! [`BadPayload`]. Its work is linear in the length of the payload, whatever the bytes are.

use std::hash::BuildHasher;
use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};

use super::record::Kind;
use crate::common::cursor::{Cursor, EndOfBytes};

/// The most bytes in the payload of a record, whatever the settings are.
///
/// With this limit, every length and offset in a record fits its field.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 20;

/// The payload of one record: the accepted readings of one request or datagram, a [`super::DeletionRecord`]
/// or a [`super::MetadataRecord`].
///
/// # Grammar
/// This is the grammar of readings. All numbers are little-endian.
/// ```text
/// payload  = names_at:u32 group* names        names_at: offset of `names` in the payload
/// group    = owner count:u32 reading{count}
/// owner    = device metadata | 0:u8 group_at:u32   group_at: offset of an earlier group with the same owner
/// device   = len:u8 bytes                     1 to 128 bytes
/// metadata = len:u32 bytes                    the text of a JSON object; len 0: no metadata
/// reading  = ts_ms:i64 count:u16 value{count}      at least one value
/// value    = name:u16 number:f64              name: index into `names`
/// names    = count:u16 name{count}
/// name     = len:u8 bytes                     the text of a series, 1 to 255 bytes
///          | 0:u8 measurement:u8 len:u16 bytes   a longer one, or one that begins with a measurement
/// ```
/// An **owner** is a device with its metadata. The earlier group has its owner in full. So a payload has a
/// device and its metadata once, however often a request changes between devices.
///
/// A payload takes at most 3 bytes for each byte of the request body (measured: 2.14). Two formats may take
/// more: at most 25 for `SenML` with long base names (measured: 22.3) and for remote write with short samples
/// (measured: 14.1). In addition, each series takes at most 516 bytes. There are at most 65,535 series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    payload: Vec<u8>,
    readings: u32,
    kind: Kind,
}

impl Batch {
    /// The encoded payload. It has at most [`MAX_PAYLOAD_BYTES`].
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The number of readings in the batch.
    pub const fn readings(&self) -> u32 {
        self.readings
    }

    /// The kind of the record.
    pub(super) const fn kind(&self) -> Kind {
        self.kind
    }

    /// The batch with the payload of a record of this kind.
    pub(super) const fn of_record(kind: Kind, payload: Vec<u8>, readings: u32) -> Self {
        Self { payload, readings, kind }
    }
}

/// Encodes readings into a [`Batch`], one by one.
#[derive(Debug)]
pub struct BatchBuilder {
    payload: Vec<u8>,
    max_bytes: usize,
    readings: u32,
    group: Option<Group>,
    names: Names,
    /// The offset of the group that has an owner in full, by the owner's number.
    ///
    /// 0: no group has that owner.
    owners: Vec<u32>,
}

/// The group that is being written: the offsets of its parts in the payload.
#[derive(Debug)]
struct Group {
    owner: Option<u32>,
    /// The offset of the group that has the owner in full.
    start: u32,
    device: Range<usize>,
    metadata: Range<usize>,
    count_at: usize,
    count: u32,
}

/// A reading does not fit into the batch, which stays as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The batch would have too many metric names.
    #[error("a request names at most 65,535 different metrics")]
    TooManyNames,
    /// The payload would have more bytes than this limit.
    #[error("the readings of a request take at most {0} bytes in the log; split the request")]
    TooLarge(usize),
    /// A device ID, metadata, a metric name or the values of a reading are longer than the format allows.
    #[error("the reading is larger than a record of the log can hold")]
    TooLong,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new(MAX_PAYLOAD_BYTES)
    }
}

impl BatchBuilder {
    /// Starts a batch of at most `max_bytes`, and at most [`MAX_PAYLOAD_BYTES`].
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

    /// Adds a reading whose device and metadata have no number, and whose names have no measurement.
    ///
    /// # Errors
    /// As [`BatchBuilder::push_of`].
    #[cfg(any(test, feature = "bench"))]
    pub fn push<'a>(
        &mut self,
        device: &str,
        metadata: Option<&str>,
        ts_ms: i64,
        values: impl ExactSizeIterator<Item = (&'a str, f64)>,
    ) -> Result<(), PushError> {
        self.push_of(None, device, metadata, ts_ms, 0, values)
    }

    /// Adds a reading whose device and metadata have the number `owner`.
    ///
    /// Equal numbers mean equal devices and metadata until [`BatchBuilder::forget_owners`].
    /// `measurement_bytes` is the length of the measurement that the names begin with, or 0. The caller has
    /// checked the device ID and the names.
    ///
    /// # Errors
    /// When the reading does not fit into the batch. The batch is then unchanged.
    pub fn push_of<'a>(
        &mut self,
        owner: Option<u32>,
        device: &str,
        metadata: Option<&str>,
        ts_ms: i64,
        measurement_bytes: u8,
        values: impl ExactSizeIterator<Item = (&'a str, f64)>,
    ) -> Result<(), PushError> {
        let (start, names) = (self.payload.len(), self.names.len());
        let pushed = self.try_push(owner, device, metadata, ts_ms, measurement_bytes, values);
        match pushed {
            Ok(Some(opened)) => {
                self.close_group();
                self.note_owner(&opened);
                self.group = Some(opened);
            }
            Ok(None) => {}
            Err(error) => {
                self.payload.truncate(start);
                self.names.truncate(names);
                return Err(error);
            }
        }
        self.readings += 1;
        if let Some(group) = &mut self.group {
            group.count += 1;
        }
        Ok(())
    }

    /// Starts a new numbering of owners.
    pub fn forget_owners(&mut self) {
        self.owners.clear();
        if let Some(group) = &mut self.group {
            group.owner = None;
        }
    }

    /// Closes the last group, appends the names, and returns the batch.
    #[must_use]
    pub fn finish(mut self) -> Batch {
        self.close_group();
        let names_at = offset(self.payload.len());
        self.payload[..4].copy_from_slice(&names_at.to_le_bytes());
        self.names.append_to(&mut self.payload);
        debug_assert!(self.payload.len() <= self.max_bytes || self.readings == 0);
        Batch { payload: self.payload, readings: self.readings, kind: Kind::Readings }
    }

    /// Appends a reading, and returns the group that it opens, if any.
    ///
    /// After an error the caller cuts off the appended bytes and names.
    fn try_push<'a>(
        &mut self,
        owner: Option<u32>,
        device: &str,
        metadata: Option<&str>,
        ts_ms: i64,
        measurement_bytes: u8,
        values: impl ExactSizeIterator<Item = (&'a str, f64)>,
    ) -> Result<Option<Group>, PushError> {
        let continues = self.group.as_ref().is_some_and(|group| self.continues(group, owner, device, metadata));
        let opened = if continues { None } else { Some(self.open_group(owner, device, metadata)?) };
        self.payload.extend_from_slice(&ts_ms.to_le_bytes());
        let count = u16::try_from(values.len()).map_err(|_| PushError::TooLong)?;
        self.payload.extend_from_slice(&count.to_le_bytes());
        for (at, (name, value)) in values.enumerate() {
            let name = self.names.index(name, measurement_bytes, at)?;
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
                || self.payload[group.metadata.clone()] == *metadata.unwrap_or_default().as_bytes())
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

    /// The group that has this owner in full: its offset, its device and its metadata.
    ///
    /// This checks that the device and the length of the metadata are equal, which is cheap.
    fn group_of(&self, owner: u32, device: &str, metadata: &str) -> Option<(u32, Range<usize>, Range<usize>)> {
        let start = self.owners.get(owner as usize).copied().filter(|&start| start > 0)?;
        let device_at = start as usize + 1;
        let device_at = device_at..device_at + device.len();
        let metadata_at = device_at.end + 4;
        let metadata_at = metadata_at..metadata_at + metadata.len();
        let is_equal = usize::from(self.payload[start as usize]) == device.len()
            && self.payload.get(device_at.clone())? == device.as_bytes()
            && self.payload.get(device_at.end..metadata_at.start)? == u32::try_from(metadata.len()).ok()?.to_le_bytes();
        is_equal.then_some((start, device_at, metadata_at))
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

/// The metrics of a batch by name and labels, each with its index.
///
/// Readings of one kind name the same metrics in the same order. So a lookup first tries the name at the same
/// place of the previous reading, and then the hash table.
#[derive(Debug, Default)]
struct Names {
    /// The names as the payload has them: each after its length.
    bytes: Vec<u8>,
    /// The offset in `bytes` and the length of each name, by index.
    places: Vec<(u32, u16)>,
    /// The indexes, by the hash of the name.
    table: HashTable<u16>,
    hasher: RandomState,
}

impl Names {
    /// The number of bytes that the names take in the payload.
    fn encoded_bytes(&self) -> usize {
        2 + self.bytes.len()
    }

    /// The number of names.
    fn len(&self) -> usize {
        self.places.len()
    }

    /// Removes all names but the first `len`.
    fn truncate(&mut self, len: usize) {
        for index in len..self.places.len() {
            let name = slice(&self.bytes, self.places[index]);
            let hash = self.hasher.hash_one(name);
            if let Ok(entry) = self.table.find_entry(hash, |&known| usize::from(known) == index) {
                entry.remove();
            }
        }
        self.places.truncate(len);
        let end = self.places.last().map_or(0, |&(start, bytes)| start as usize + usize::from(bytes));
        self.bytes.truncate(end);
    }

    /// Appends the part `names` of the grammar of a payload.
    fn append_to(&self, payload: &mut Vec<u8>) {
        let count = u16::try_from(self.places.len()).expect("`index` adds at most 65,535 names");
        payload.extend_from_slice(&count.to_le_bytes());
        payload.extend_from_slice(&self.bytes);
    }

    /// The index of a name, which is added if it is new.
    ///
    /// `hint` is the index to try first.
    ///
    /// `measurement_bytes` is the length of the measurement that the name may begin with. A name that the
    /// batch already has keeps the measurement that it was added with.
    fn index(&mut self, name: &str, measurement_bytes: u8, hint: usize) -> Result<u16, PushError> {
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
        let len = u16::try_from(name.len()).map_err(|_| PushError::TooLong)?;
        let has_field = measurement_bytes > 0 && name.as_bytes().get(usize::from(measurement_bytes)) == Some(&b'_');
        match u8::try_from(len) {
            Ok(short) if !has_field => self.bytes.push(short),
            _ => {
                self.bytes.extend_from_slice(&[0, if has_field { measurement_bytes } else { 0 }]);
                self.bytes.extend_from_slice(&len.to_le_bytes());
            }
        }
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

fn slice(bytes: &[u8], (start, len): (u32, u16)) -> &[u8] {
    &bytes[start as usize..start as usize + usize::from(len)]
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

/// A payload of readings, read in place.
#[derive(Debug)]
pub struct BatchView<'a> {
    /// The metric names, which values refer to by index.
    pub names: Vec<Name<'a>>,
    /// The groups and readings of the batch in order.
    pub steps: Steps<'a>,
}

impl<'a> BatchView<'a> {
    /// Opens a payload.
    ///
    /// # Errors
    /// When the table of names breaks the grammar.
    pub fn new(payload: &'a [u8]) -> Result<Self, BadPayload> {
        let mut head = Cursor::new(payload);
        let names_at = u32::from_le_bytes(head.array()?) as usize;
        let mut tail = Cursor::at(payload, names_at);
        let count = u16::from_le_bytes(tail.array()?);
        let names: Vec<_> = (0..count).map(|_| name(&mut tail)).collect::<Result<_, _>>()?;
        let groups = payload.get(..names_at).ok_or(BadPayload(0))?;
        let cursor = Cursor::at(groups, head.offset());
        let steps = Steps { names: names.len(), cursor, readings_left: 0, owners: HashMap::default() };
        Ok(Self { names, steps })
    }
}

/// A part of a batch, in the order of the payload.
#[derive(Debug)]
pub enum Step<'a> {
    /// The readings that follow belong to this device, and arrived with this metadata.
    Group {
        /// The stored ID of the device.
        device: Text<'a>,
        /// The text of a JSON object.
        metadata: Option<&'a str>,
    },
    /// A reading of the device of the last group.
    Reading {
        /// The instant, in Unix milliseconds.
        ts_ms: i64,
        /// The values: at least one.
        values: Values<'a>,
    },
}

/// A text in a payload, which is UTF-8. Most uses need its bytes only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    /// Takes bytes as a text; `None` if they are not UTF-8.
    ///
    /// It checks for ASCII first, which takes a fraction of the work of a check for UTF-8.
    fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.is_ascii() || std::str::from_utf8(bytes).is_ok()).then_some(Self(bytes))
    }

    /// The text as bytes.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The text as a string.
    #[must_use]
    pub fn as_str(self) -> &'a str {
        std::str::from_utf8(self.0).expect("it was checked")
    }
}

/// The name of a metric with its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a> {
    /// The text of the series.
    pub text: &'a str,
    /// The length of the measurement that the text begins with; 0: none.
    pub measurement_bytes: u8,
}

/// The payload breaks its grammar at this byte.
///
/// Its checksum is right, so this is no damage on the disk: a program wrote it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the payload breaks its grammar at byte {0}")]
pub struct BadPayload(pub usize);

impl From<EndOfBytes> for BadPayload {
    fn from(EndOfBytes(at): EndOfBytes) -> Self {
        Self(at)
    }
}

/// An iterator over the parts of a batch. Callers stop at its first error.
#[derive(Debug)]
pub struct Steps<'a> {
    /// The number of names in the payload.
    names: usize,
    cursor: Cursor<'a>,
    /// The number of readings left in the group.
    readings_left: u32,
    /// The owners that groups refer to, by the offset of the group that has the owner in full.
    owners: HashMap<usize, (Text<'a>, &'a str), RandomState>,
}

impl<'a> Iterator for Steps<'a> {
    type Item = Result<Step<'a>, BadPayload>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.readings_left > 0 {
            return Some(self.reading());
        }
        (!self.is_over()).then(|| self.group())
    }
}

impl<'a> Steps<'a> {
    /// Whether no step is left.
    pub const fn is_over(&self) -> bool {
        self.readings_left == 0 && self.cursor.offset() >= self.cursor.bytes().len()
    }

    /// Reads the head of a group.
    fn group(&mut self) -> Result<Step<'a>, BadPayload> {
        let start = self.cursor.offset();
        let (device, metadata) = match owner(&mut self.cursor)? {
            Owner::InFull(device, metadata) => (device, metadata),
            Owner::OfGroup(at) => self.owner_of(at, start)?,
        };
        self.readings_left = u32::from_le_bytes(self.cursor.array()?);
        Ok(Step::Group { device, metadata: (!metadata.is_empty()).then_some(metadata) })
    }

    /// The owner of the group at the offset `at`.
    ///
    /// The group must begin before `end` and have its owner in full, or the payload breaks the grammar.
    /// An owner is read once, however many groups refer to it, so that the work is in proportion to the
    /// payload.
    fn owner_of(&mut self, at: usize, end: usize) -> Result<(Text<'a>, &'a str), BadPayload> {
        if let Some(&known) = self.owners.get(&at) {
            return Ok(known);
        }
        let Owner::InFull(device, metadata) = owner(&mut Cursor::at(&self.cursor.bytes()[..end], at))? else {
            return Err(BadPayload(at));
        };
        self.owners.insert(at, (device, metadata));
        Ok((device, metadata))
    }

    fn reading(&mut self) -> Result<Step<'a>, BadPayload> {
        self.readings_left -= 1;
        let [ts_ms @ .., low, high] = self.cursor.array::<10>()?;
        let (ts_ms, count) = (i64::from_le_bytes(ts_ms), usize::from(u16::from_le_bytes([low, high])));
        let at = self.cursor.offset();
        let (values, _) = self.cursor.take(count * VALUE_BYTES)?.as_chunks();
        let values = Values(values.iter());
        if count == 0 || values.clone().any(|(name, _)| usize::from(name) >= self.names) {
            return Err(BadPayload(at));
        }
        Ok(Step::Reading { ts_ms, values })
    }
}

/// The owner of a group: a device and its metadata.
enum Owner<'a> {
    /// The device and its metadata. The text of the metadata is empty if the device has none.
    InFull(Text<'a>, &'a str),
    /// The group at this offset has the owner in full.
    OfGroup(usize),
}

fn owner<'a>(cursor: &mut Cursor<'a>) -> Result<Owner<'a>, BadPayload> {
    let (at, [len]) = (cursor.offset(), cursor.array()?);
    let device = Text::new(cursor.take(usize::from(len))?).ok_or(BadPayload(at + 1))?;
    let number = u32::from_le_bytes(cursor.array()?) as usize;
    if len == 0 {
        return Ok(Owner::OfGroup(number));
    }
    Ok(Owner::InFull(device, text(cursor, number)?))
}

/// The bytes of a value: the index of its name, and the number.
const VALUE_BYTES: usize = 10;

/// The values of a reading: indexes into [`BatchView::names`], and numbers.
#[derive(Debug, Clone)]
pub struct Values<'a>(std::slice::Iter<'a, [u8; VALUE_BYTES]>);

impl Iterator for Values<'_> {
    type Item = (u16, f64);

    fn next(&mut self) -> Option<Self::Item> {
        let [low, high, number @ ..] = *self.0.next()?;
        Some((u16::from_le_bytes([low, high]), f64::from_le_bytes(number)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Values<'_> {}

fn name<'a>(cursor: &mut Cursor<'a>) -> Result<Name<'a>, BadPayload> {
    let [len] = cursor.array()?;
    if len > 0 {
        return Ok(Name { text: text(cursor, usize::from(len))?, measurement_bytes: 0 });
    }
    let at = cursor.offset();
    let [measurement_bytes, low, high] = cursor.array()?;
    let text = text(cursor, usize::from(u16::from_le_bytes([low, high])))?;
    match text.get(..usize::from(measurement_bytes)) {
        Some(_) if !text.is_empty() => Ok(Name { text, measurement_bytes }),
        _ => Err(BadPayload(at)),
    }
}

fn text<'a>(cursor: &mut Cursor<'a>, len: usize) -> Result<&'a str, BadPayload> {
    let at = cursor.offset();
    std::str::from_utf8(cursor.take(len)?).map_err(|_| BadPayload(at))
}

#[cfg(test)]
mod tests;
