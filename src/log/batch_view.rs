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

    /// Walks through the batch in order.
    ///
    /// # Errors
    /// When the payload breaks the grammar; what came before was handed on already.
    /// An owner is read once, however many groups refer to it: the work is in proportion to the payload.
    pub fn walk(&self, visitor: &mut impl Visitor<'a>) -> Result<(), BadPayload> {
        let mut cursor = Cursor { ..self.groups };
        let mut again = HashMap::with_hasher(RandomState::default());
        while cursor.at < cursor.bytes.len() {
            let start = cursor.at;
            let (device, metadata) = match cursor.owner()? {
                Owner::InFull(device, metadata) => (device, metadata),
                Owner::OfGroup(at) => match again.get(&at) {
                    Some(&known) => known,
                    None => *again.entry(at).insert(self.owner_at(at, start)?).get(),
                },
            };
            let readings = cursor.u32()?;
            visitor.group(device, (!metadata.is_empty()).then_some(metadata));
            for _ in 0..readings {
                let ts_ms = i64::from_le_bytes(cursor.array()?);
                let count = usize::from(cursor.u16()?);
                let at = cursor.at;
                let values = Values { bytes: cursor.take(count * VALUE_BYTES)?.chunks_exact(VALUE_BYTES) };
                if count == 0 || values.clone().any(|(name, _)| usize::from(name) >= self.names.len()) {
                    return Err(BadPayload(at));
                }
                visitor.reading(ts_ms, values);
            }
        }
        Ok(())
    }

    /// The owner that stands in full in the group at `at`, which begins before `end`.
    fn owner_at(&self, at: usize, end: usize) -> Result<(&'a str, &'a str), BadPayload> {
        let mut cursor = Cursor { bytes: &self.groups.bytes[..end], at };
        match cursor.owner()? {
            Owner::InFull(device, metadata) => Ok((device, metadata)),
            Owner::OfGroup(_) => Err(BadPayload(at)),
        }
    }
}

/// Whose readings a group holds.
enum Owner<'a> {
    /// Device and metadata.
    InFull(&'a str, &'a str),
    /// Those of the group at this offset.
    OfGroup(usize),
}

/// Sees the parts of a batch in order.
pub trait Visitor<'a> {
    /// The readings that follow are of this device, and came with this metadata.
    fn group(&mut self, device: &'a str, metadata: Option<&'a str>);
    /// A reading: its instant in Unix milliseconds, and its values.
    fn reading(&mut self, ts_ms: i64, values: Values<'a>);
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
}

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
