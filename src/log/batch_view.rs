//! Reading a payload in place, without copying it. The grammar is on [`super::Batch`].

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// A payload breaks its grammar, at this byte. It passed its checksum, so a program wrote it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the payload breaks its grammar at byte {0}")]
pub struct BadPayload(pub usize);

/// Reads a payload in place.
#[derive(Debug)]
pub struct BatchView<'a> {
    names: Vec<&'a str>,
    groups: Cursor<'a>,
}

impl<'a> BatchView<'a> {
    /// Opens a payload.
    ///
    /// # Errors
    /// When the table of names breaks the grammar.
    pub fn new(payload: &'a [u8]) -> Result<Self, BadPayload> {
        let mut whole = Cursor { bytes: payload, at: 0 };
        let names_at = whole.u32()? as usize;
        let mut tail = Cursor { bytes: payload, at: names_at };
        let count = tail.u16()?;
        let names = (0..count).map(|_| tail.short_text()).collect::<Result<_, _>>()?;
        let groups = payload.get(..names_at).ok_or(BadPayload(0))?;
        Ok(Self { names, groups: Cursor { bytes: groups, at: whole.at } })
    }

    /// The metric names that the readings' values point into.
    pub fn names(&self) -> &[&'a str] {
        &self.names
    }

    /// The parts of the batch in order.
    pub fn steps(self) -> Steps<'a> {
        Steps { names: self.names.len(), cursor: self.groups, readings_left: 0, owners: HashMap::default() }
    }
}

/// Whose readings a group holds.
enum Owner<'a> {
    /// Device and metadata.
    InFull(&'a str, &'a str),
    /// Those of the group at this offset.
    OfGroup(usize),
}

/// A part of a batch.
#[derive(Debug)]
pub enum Step<'a> {
    /// The readings that follow are of this device, and came with this metadata.
    Group {
        /// The device.
        device: &'a str,
        /// The text of a JSON object.
        metadata: Option<&'a str>,
    },
    /// A reading.
    Reading {
        /// Its instant, in Unix milliseconds.
        ts_ms: i64,
        /// Its values.
        values: Values<'a>,
    },
}

/// Walks through a batch. After an error it is not to be asked again.
#[derive(Debug)]
pub struct Steps<'a> {
    names: usize,
    cursor: Cursor<'a>,
    /// How many readings of the group follow.
    readings_left: u32,
    /// The owners that groups refer to, by the offset of the group that has them in full.
    owners: HashMap<usize, (&'a str, &'a str), RandomState>,
}

/// The owner that stands in full in the group at `at`, which begins before `end`.
fn owner_at(groups: &[u8], at: usize, end: usize) -> Result<(&str, &str), BadPayload> {
    let mut cursor = Cursor { bytes: &groups[..end], at };
    match cursor.owner()? {
        Owner::InFull(device, metadata) => Ok((device, metadata)),
        Owner::OfGroup(_) => Err(BadPayload(at)),
    }
}

impl<'a> Steps<'a> {
    /// Whether nothing is left.
    pub const fn is_over(&self) -> bool {
        self.readings_left == 0 && self.cursor.at >= self.cursor.bytes.len()
    }

    /// An owner is read once, however many groups refer to it: the work is in proportion to the payload.
    fn group(&mut self) -> Result<Step<'a>, BadPayload> {
        let start = self.cursor.at;
        let (device, metadata) = match self.cursor.owner()? {
            Owner::InFull(device, metadata) => (device, metadata),
            Owner::OfGroup(at) => match self.owners.get(&at) {
                Some(&known) => known,
                None => *self.owners.entry(at).insert(owner_at(self.cursor.bytes, at, start)?).get(),
            },
        };
        self.readings_left = self.cursor.u32()?;
        Ok(Step::Group { device, metadata: (!metadata.is_empty()).then_some(metadata) })
    }

    fn reading(&mut self) -> Result<Step<'a>, BadPayload> {
        self.readings_left -= 1;
        let ts_ms = i64::from_le_bytes(self.cursor.array()?);
        let count = usize::from(self.cursor.u16()?);
        let at = self.cursor.at;
        let values = Values { bytes: self.cursor.take(count * VALUE_BYTES)?.chunks_exact(VALUE_BYTES) };
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

/// A value takes so many bytes: the index of its name, and the number.
const VALUE_BYTES: usize = 10;

/// The values of a reading: index into [`BatchView::names`], number.
#[derive(Debug, Clone)]
pub struct Values<'a> {
    bytes: std::slice::ChunksExact<'a, u8>,
}

impl Iterator for Values<'_> {
    type Item = (u16, f64);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, number) = self.bytes.next()?.split_at(2);
        Some((u16::from_le_bytes(name.try_into().ok()?), f64::from_le_bytes(number.try_into().ok()?)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.bytes.size_hint()
    }
}

impl ExactSizeIterator for Values<'_> {}

#[derive(Debug)]
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], BadPayload> {
        let end = self.at.checked_add(count).ok_or(BadPayload(self.at))?;
        let taken = self.bytes.get(self.at..end).ok_or(BadPayload(self.at))?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadPayload> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn owner(&mut self) -> Result<Owner<'a>, BadPayload> {
        let device = self.short_text()?;
        let number = self.u32()? as usize;
        if device.is_empty() {
            return Ok(Owner::OfGroup(number));
        }
        Ok(Owner::InFull(device, self.text(number)?))
    }

    fn u16(&mut self) -> Result<u16, BadPayload> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, BadPayload> {
        self.array().map(u32::from_le_bytes)
    }

    fn short_text(&mut self) -> Result<&'a str, BadPayload> {
        let [len] = self.array()?;
        self.text(usize::from(len))
    }

    fn text(&mut self, len: usize) -> Result<&'a str, BadPayload> {
        let at = self.at;
        std::str::from_utf8(self.take(len)?).map_err(|_| BadPayload(at))
    }
}
