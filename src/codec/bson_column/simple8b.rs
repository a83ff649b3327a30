//! Simple8b: increments in words of 64 bits.
//!
//! The four lowest bits of a word are its selector. The slots follow, with the first slot in the lowest bits.
//! In words with selectors 7 and 8, the next four bits are the variant. Variant 0 has plain slots. In the
//! other variants, the lowest bits of a slot count the trailing zeros of its value: single zeros with
//! selector 7, groups of four with selector 8.

use super::super::ChunkError;

/// Increments of this size or more do not fit into a word.
pub(super) const TOO_LARGE: u64 = (1 << 60) - 1;

/// A word with selector 15 repeats the last slot this many times, or a multiple of it up to [`REPEATED_MAX`].
const REPEATED: usize = 120;
const REPEATED_MAX: usize = 16 * REPEATED;
const REPEAT: u64 = 15;

/// Selectors with plain slots, the densest first: the selector, the bits before the slots, the bits of a
/// slot, and the number of slots.
const PLAIN: [(u64, u32, u32, usize); 14] = [
    (1, 4, 1, 60),
    (2, 4, 2, 30),
    (3, 4, 3, 20),
    (4, 4, 4, 15),
    (5, 4, 5, 12),
    (6, 4, 6, 10),
    (7, 8, 7, 8),
    (8, 8, 8, 7),
    (9, 4, 10, 6),
    (10, 4, 12, 5),
    (11, 4, 15, 4),
    (12, 4, 20, 3),
    (13, 4, 30, 2),
    (14, 4, 60, 1),
];

/// The bits of the values in variants 1 to 9 of selector 7, whose counts have 4 bits.
const BY_ONE: [u32; 9] = [2, 3, 4, 5, 7, 10, 14, 24, 52];
/// The bits of the values in variants 1 to 7 of selector 8, whose counts have 4 bits.
const BY_FOUR: [u32; 7] = [4, 5, 7, 10, 14, 24, 52];
/// The bits of the values in variants 8 to 13 of selector 8, whose counts have 5 bits.
const BY_FOUR_LARGE: [u32; 6] = [4, 6, 9, 13, 23, 51];

/// An increment in zigzag order, or `None` for a missing value.
pub(super) type Slot = Option<u64>;

/// An iterator over the words that encode some slots.
pub(super) struct Words<'a> {
    slots: &'a [Slot],
    at: usize,
}

impl<'a> Words<'a> {
    /// Encodes slots, all below [`TOO_LARGE`].
    pub(super) const fn of(slots: &'a [Slot]) -> Self {
        Self { slots, at: 0 }
    }
}

impl Iterator for Words<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (done, rest) = self.slots.split_at(self.at);
        if let Some(last) = done.last() {
            let run = rest.iter().take(REPEATED_MAX).take_while(|slot| *slot == last).count() / REPEATED;
            if run > 0 {
                self.at += run * REPEATED;
                return Some(REPEAT | (run as u64 - 1) << 4);
            }
        }
        let fits = |&&(_, _, width, count): &&(u64, u32, u32, usize)| {
            let missing = (1 << width) - 1;
            rest.get(..count).is_some_and(|slots| slots.iter().all(|slot| slot.is_none_or(|slot| slot < missing)))
        };
        let &(selector, start, width, count) = PLAIN.iter().find(fits)?;
        self.at += count;
        let missing = (1 << width) - 1;
        let slots = rest[..count].iter().rev().fold(0, |word, slot| word << width | slot.unwrap_or(missing));
        Some(selector | slots << start)
    }
}

/// An iterator over the slots of a word.
#[derive(Debug, Clone, Default)]
pub(super) struct Unpacked {
    word: u64,
    left: usize,
    /// The bits of the value in a slot.
    width: u32,
    /// The bits of the count of trailing zeros, which precedes the value in its slot.
    count_width: u32,
    /// The number of trailing zeros that the count counts as one: 1 or 4.
    unit: u32,
    /// The slot that a word with selector 15 repeats.
    ///
    /// Only `left` of the other fields has a meaning then.
    repeated: Option<Slot>,
}

impl Unpacked {
    /// Reads a word. `last` is the last slot of the word before.
    pub(super) fn read(word: u64, last: Slot) -> Result<Self, ChunkError> {
        let variant = (word >> 4 & 15) as usize;
        let variable = |width: Option<&u32>, count_width, unit| {
            let width = *width?;
            let left = (56 / (width + count_width)) as usize;
            Some(Self { word: word >> 8, left, width, count_width, unit, repeated: None })
        };
        let unpacked = match word & 15 {
            REPEAT => Some(Self { left: (variant + 1) * REPEATED, repeated: Some(last), ..Self::default() }),
            7 if variant > 0 => variable(BY_ONE.get(variant - 1), 4, 1),
            8 if variant > 7 => variable(BY_FOUR_LARGE.get(variant - 8), 5, 4),
            8 if variant > 0 => variable(BY_FOUR.get(variant - 1), 4, 4),
            selector => PLAIN.iter().find(|(plain, ..)| *plain == selector).map(|&(_, start, width, left)| Self {
                word: word >> start,
                left,
                width,
                count_width: 0,
                unit: 0,
                repeated: None,
            }),
        };
        unpacked.ok_or(ChunkError::Invalid("a selector is not known"))
    }
}

impl Iterator for Unpacked {
    type Item = Slot;

    #[inline]
    fn next(&mut self) -> Option<Slot> {
        self.left = self.left.checked_sub(1)?;
        if self.repeated.is_some() {
            return self.repeated;
        }
        let bits = self.width + self.count_width;
        let slot = self.word & ((1 << bits) - 1);
        self.word >>= bits;
        if slot == (1 << bits) - 1 {
            return Some(None);
        }
        let zeros = (slot & ((1 << self.count_width) - 1)) as u32 * self.unit;
        Some(Some((slot >> self.count_width).checked_shl(zeros).unwrap_or(0)))
    }
}
