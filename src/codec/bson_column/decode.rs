//! Decodes columns into values.

use super::simple8b::{Slot, Unpacked};
use super::{DATE, DOUBLE, END, PLAIN, SCALES, scaled, unscaled};
use crate::codec::ChunkError;
use crate::common::cursor::Cursor;
use crate::common::zigzag::unzigzag;

/// A part of a column: a literal value, or an increment of the value before.
enum Item {
    Literal([u8; 8]),
    Increment { mode: u8, slot: Slot },
}

/// Reads the parts of a column one by one.
#[derive(Debug, Clone)]
struct Items<'a> {
    cursor: Cursor<'a>,
    /// The type of the column's literals.
    kind: u8,
    mode: u8,
    words_left: u8,
    slots: Unpacked,
    last: Slot,
    has_ended: bool,
}

impl<'a> Items<'a> {
    fn new(bytes: &'a [u8], kind: u8) -> Self {
        let slots = Unpacked::default();
        let cursor = Cursor::new(bytes);
        Self { cursor, kind, mode: PLAIN, words_left: 0, slots, last: Some(0), has_ended: false }
    }

    fn next(&mut self) -> Option<Result<Item, ChunkError>> {
        if self.has_ended {
            return None;
        }
        if let Some(slot) = self.slots.next() {
            self.last = slot;
            return Some(Ok(Item::Increment { mode: self.mode, slot }));
        }
        let item = self.read().transpose();
        self.has_ended = !matches!(item, Some(Ok(_)));
        item
    }

    fn read(&mut self) -> Result<Option<Item>, ChunkError> {
        if self.words_left == 0 {
            let [byte] = self.cursor.array()?;
            match byte {
                END if self.cursor.rest().is_empty() => return Ok(None),
                END => return Err(ChunkError::Invalid("something follows its end")),
                kind if kind == self.kind => {
                    let [name, value @ ..]: [u8; 9] = self.cursor.array()?;
                    self.last = Some(0);
                    let literal = (name == 0).then_some(Item::Literal(value));
                    return literal.ok_or(ChunkError::Invalid("a literal has a name")).map(Some);
                }
                control => (self.mode, self.words_left) = (control >> 4, (control & 15) + 1),
            }
            let modes = if self.kind == DOUBLE { PLAIN..=PLAIN + SCALES.len() as u8 } else { PLAIN..=PLAIN };
            if !modes.contains(&self.mode) {
                return Err(ChunkError::Invalid("a type or a mode is not known"));
            }
        }
        self.words_left -= 1;
        self.slots = Unpacked::read(u64::from_le_bytes(self.cursor.array()?), self.last)?;
        self.last = self.slots.next().expect("each word has a slot");
        Ok(Some(Item::Increment { mode: self.mode, slot: self.last }))
    }
}

/// An iterator over the dates of a column, in Unix milliseconds. `None` is a missing value. It ends after an
/// error.
///
/// Eight bytes of a column can stand for 1,920 values: read no more values than the document has.
#[derive(Debug, Clone)]
pub struct Dates<'a> {
    items: Items<'a>,
    instant: i64,
    difference: i64,
}

impl<'a> Dates<'a> {
    /// Reads the dates in some bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { items: Items::new(bytes, DATE), instant: 0, difference: 0 }
    }
}

impl Iterator for Dates<'_> {
    type Item = Result<Option<i64>, ChunkError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.items.next()?.map(|item| {
            match item {
                Item::Literal(bytes) => (self.instant, self.difference) = (i64::from_le_bytes(bytes), 0),
                Item::Increment { slot, .. } => {
                    self.difference = self.difference.wrapping_add(unzigzag(slot?));
                    self.instant = self.instant.wrapping_add(self.difference);
                }
            }
            Some(self.instant)
        }))
    }
}

/// An iterator over the doubles of a column. `None` is a missing value. It ends after an error.
///
/// Eight bytes of a column can stand for 1,920 values: read no more values than the document has.
#[derive(Debug, Clone)]
pub struct Doubles<'a> {
    items: Items<'a>,
    value: f64,
    /// `value` as an integer, and the mode of this integer.
    ///
    /// `None`: the integer is not computed yet.
    number: Option<(i64, u8)>,
}

impl<'a> Doubles<'a> {
    /// Reads the doubles in some bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { items: Items::new(bytes, DOUBLE), value: 0.0, number: None }
    }

    fn increment(&mut self, increment: u64, mode: u8) -> Option<f64> {
        let number = match self.number {
            Some((number, known)) if known == mode => number,
            _ => scaled(self.value, mode)?,
        };
        let number = number.wrapping_add(unzigzag(increment));
        (self.number, self.value) = (Some((number, mode)), unscaled(number, mode));
        Some(self.value)
    }
}

impl Iterator for Doubles<'_> {
    type Item = Result<Option<f64>, ChunkError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.items.next()?;
        Some(item.and_then(|item| match item {
            Item::Literal(bytes) => {
                (self.number, self.value) = (None, f64::from_le_bytes(bytes));
                Ok(Some(self.value))
            }
            Item::Increment { slot: None, .. } => Ok(None),
            Item::Increment { mode, slot: Some(increment) } => {
                let value = self.increment(increment, mode);
                self.items.has_ended |= value.is_none();
                value.map(Some).ok_or(ChunkError::Invalid("a double is not exact at the scale of the next one"))
            }
        }))
    }
}
