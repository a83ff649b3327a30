//! Reads a payload in place, without copying it. The grammar is on [`super::Batch`].

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::common::cursor::{Cursor, EndOfBytes};

/// The payload breaks its grammar at this byte. Its checksum is right, so a program wrote it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the payload breaks its grammar at byte {0}")]
pub struct BadPayload(pub usize);

/// The name of a metric with its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a> {
    /// The text of the series.
    pub text: &'a str,
    /// The length of the measurement that the text begins with; 0: none.
    pub measurement_bytes: u8,
}

/// A text in a payload, which is UTF-8. Most uses need its bytes only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    /// Checks a text. A check for ASCII takes a fraction of the work of one for UTF-8.
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

/// A payload of readings, read in place.
#[derive(Debug)]
pub struct BatchView<'a> {
    names: Vec<Name<'a>>,
    groups: Cursor<'a>,
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
        let names = (0..count).map(|_| name(&mut tail)).collect::<Result<_, _>>()?;
        let groups = payload.get(..names_at).ok_or(BadPayload(0))?;
        Ok(Self { names, groups: Cursor::at(groups, head.offset()) })
    }

    /// The metric names, which values refer to by index.
    pub fn names(&self) -> &[Name<'a>] {
        &self.names
    }

    /// The groups and readings of the batch in order.
    pub fn steps(self) -> Steps<'a> {
        Steps { names: self.names.len(), cursor: self.groups, readings_left: 0, owners: HashMap::default() }
    }
}

/// The owner of a group: a device and its metadata.
enum Owner<'a> {
    /// The device and its metadata, which is empty if there is none.
    InFull(Text<'a>, &'a str),
    /// The group at this offset has the owner in full.
    OfGroup(usize),
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

/// The steps through a batch. After an error, callers stop.
#[derive(Debug)]
pub struct Steps<'a> {
    names: usize,
    cursor: Cursor<'a>,
    /// The number of readings left in the group.
    readings_left: u32,
    /// The owners that groups refer to, by the offset of the group that has the owner in full.
    owners: HashMap<usize, (Text<'a>, &'a str), RandomState>,
}

/// The owner of the group at `at`, which has it in full and begins before `end`.
fn owner_at(groups: &[u8], at: usize, end: usize) -> Result<(Text<'_>, &str), BadPayload> {
    match owner(&mut Cursor::at(&groups[..end], at))? {
        Owner::InFull(device, metadata) => Ok((device, metadata)),
        Owner::OfGroup(_) => Err(BadPayload(at)),
    }
}

impl<'a> Steps<'a> {
    /// Whether no step is left.
    pub const fn is_over(&self) -> bool {
        self.readings_left == 0 && self.cursor.offset() >= self.cursor.bytes().len()
    }

    /// Reads the head of a group. An owner is read once, however many groups refer to it, so that the work is
    /// in proportion to the payload.
    fn group(&mut self) -> Result<Step<'a>, BadPayload> {
        let start = self.cursor.offset();
        let (device, metadata) = match owner(&mut self.cursor)? {
            Owner::InFull(device, metadata) => (device, metadata),
            Owner::OfGroup(at) => match self.owners.get(&at) {
                Some(&known) => known,
                None => *self.owners.entry(at).insert(owner_at(self.cursor.bytes(), at, start)?).get(),
            },
        };
        self.readings_left = u32::from_le_bytes(self.cursor.array()?);
        Ok(Step::Group { device, metadata: (!metadata.is_empty()).then_some(metadata) })
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

impl<'a> Iterator for Steps<'a> {
    type Item = Result<Step<'a>, BadPayload>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.readings_left > 0 {
            return Some(self.reading());
        }
        (!self.is_over()).then(|| self.group())
    }
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

impl From<EndOfBytes> for BadPayload {
    fn from(EndOfBytes(at): EndOfBytes) -> Self {
        Self(at)
    }
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
