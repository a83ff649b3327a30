//! Writing a stream. The grammar is on the module above.

use std::sync::Arc;

use smallvec::SmallVec;

use super::pieces::{PIECE_BYTES, PIECE_LEN, PIECES_MAX, Packed, Piece, SEALED_BYTES, Sealed};
use super::{
    DELTA, LONG, NEW_SERIES, NO_ENTRY, OTHER_SERIES, RESCALED, SERIES_MAX, SHORTENED, SKIP_MAX, STARTS_READING, Series,
    TOKEN_BYTES_MAX, Times, WHOLE, decimal,
};
use crate::common::zigzag::zigzag;
use crate::model::HourOffset;
use crate::pending::slots::Key;

/// After this many values in a row that are no decimals, the next ones are not tried.
const MISSES_MAX: u8 = 4;

/// The next values, this many, are then written as numbers, and not tried as decimals.
const UNTRIED: u8 = 16;

/// A stream that grows.
#[derive(Debug, Default)]
pub(in crate::pending) struct Stream {
    /// The newest piece, which links to the pieces before it that are not sealed.
    piece: Option<Box<Piece>>,
    /// The table of series, by their first appearance.
    series: SmallVec<[Series; 1]>,
    times: Times,
    /// The number of values.
    values: u32,
    /// The predicted series: a place in the table.
    next: u16,
    /// The bytes in use of the newest piece.
    used: u8,
    /// The number of pieces that are not sealed.
    pieces: u8,
    /// The sealed pieces, which are older.
    sealed: Option<Arc<Sealed>>,
}

/// A value as a part of a long token.
#[derive(Debug, Clone, Copy)]
enum Coded {
    /// The difference from the last integer of the series.
    Delta(i64),
    /// Another power of ten, and the integer.
    Rescaled(u8, i64),
    /// A number that is no decimal.
    Number(f64),
}

/// How a long token names a series.
#[derive(Debug, Clone, Copy)]
enum Named {
    Predicted,
    Skip(usize),
    New(Key),
    NoEntry(Key),
}

impl Stream {
    /// The memory outside of the struct.
    pub(in crate::pending) fn bytes(&self) -> usize {
        let series = if self.series.spilled() { self.series.capacity() * size_of::<Series>() } else { 0 };
        usize::from(self.pieces) * PIECE_BYTES + Sealed::bytes(self.sealed.as_ref()) + series
    }

    /// The number of pieces that [`Self::copy`] copies.
    pub(in crate::pending) const fn pieces(&self) -> usize {
        self.pieces as usize
    }

    /// Reads the place of the next byte, for the processor's caches.
    #[inline]
    pub(in crate::pending) fn touch(&self) -> usize {
        self.piece.as_ref().map_or(0, |piece| usize::from(piece.bytes[usize::from(self.used).min(PIECE_LEN - 1)]))
    }

    /// Returns the stream so far. Shares sealed pieces and copies the others.
    pub(in crate::pending) fn copy(&self) -> Packed {
        Packed { sealed: self.sealed.clone(), piece: self.piece.clone(), used: self.used, values: self.values }
    }

    pub(in crate::pending) fn into_packed(self) -> Packed {
        Packed { sealed: self.sealed, piece: self.piece, used: self.used, values: self.values }
    }

    /// Appends a value, and returns by how many bytes the memory has grown.
    #[inline]
    pub(in crate::pending) fn push(
        &mut self,
        offset: HourOffset,
        starts_reading: bool,
        metric: Key,
        value: f64,
    ) -> usize {
        self.values += 1;
        let Some(series) = self.series.get_mut(usize::from(self.next)).filter(|series| series.metric == metric) else {
            return self.push_other(offset, starts_reading, metric, value);
        };
        let Some(delta) = series.delta(value) else {
            let coded = series.code(value);
            return self.push_long(offset, starts_reading, Named::Predicted, coded);
        };
        if !starts_reading {
            return if fits::<6>(delta) {
                self.pass(0);
                self.append([0b1000_0000 | low::<6>(delta) as u8])
            } else {
                self.push_long(offset, false, Named::Predicted, Coded::Delta(delta))
            };
        }
        let difference = i64::from(self.times.difference(offset));
        if fits::<8>(difference) && fits::<7>(delta) {
            self.times.advance_on_time(offset);
            self.pass(0);
            if difference == 0 && fits::<4>(delta) {
                self.append([0b1110_0000 | low::<4>(delta) as u8])
            } else {
                self.append(((low::<8>(difference) << 7 | low::<7>(delta)) as u16).to_be_bytes())
            }
        } else if fits::<12>(difference) && fits::<9>(delta) {
            self.times.advance(offset);
            self.pass(0);
            let [_, token @ ..] = (0b110 << 21 | low::<12>(difference) << 9 | low::<9>(delta)).to_be_bytes();
            self.append(token)
        } else {
            self.push_long(offset, true, Named::Predicted, Coded::Delta(delta))
        }
    }

    /// Appends a value of another series than the predicted one.
    #[inline(never)]
    fn push_other(&mut self, offset: HourOffset, starts_reading: bool, metric: Key, value: f64) -> usize {
        let (len, next) = (self.series.len(), usize::from(self.next));
        let is_it = |skip: &usize| self.series[(next + skip) % len].metric == metric;
        if let Some(skip) = (1..len.min(SKIP_MAX + 1)).find(is_it) {
            let coded = self.series[(next + skip) % len].code(value);
            return self.push_long(offset, starts_reading, Named::Skip(skip), coded);
        }
        if len == SERIES_MAX {
            return self.push_long(offset, starts_reading, Named::NoEntry(metric), Coded::Number(value));
        }
        let before = if self.series.spilled() { self.series.capacity() } else { 0 };
        self.series.push(Series::new(metric));
        let after = if self.series.spilled() { self.series.capacity() } else { 0 };
        let coded = self.series[len].code(value);
        (after - before) * size_of::<Series>() + self.push_long(offset, starts_reading, Named::New(metric), coded)
    }

    #[inline(never)]
    fn push_long(&mut self, offset: HourOffset, starts_reading: bool, named: Named, coded: Coded) -> usize {
        let mut token = Token::default();
        token.put(&[LONG]);
        match named {
            Named::Predicted => self.pass(0),
            Named::Skip(skip) => {
                token.put_number(skip as u64);
                self.pass(skip);
            }
            Named::New(metric) => {
                token.put_number(NEW_SERIES);
                token.put_number(metric.get().into());
                self.next = 0; // after the last entry
            }
            Named::NoEntry(metric) => {
                token.put_number(NO_ENTRY);
                token.put_number(metric.get().into());
            }
        }
        if !matches!(named, Named::Predicted) {
            token.bytes[0] |= OTHER_SERIES;
        }
        if starts_reading {
            token.bytes[0] |= STARTS_READING;
            token.put_number(zigzag(self.times.difference(offset).into()));
            self.times.advance(offset);
        }
        token.put_value(coded);
        self.append_slice(&token.bytes[..token.len])
    }

    /// Moves the prediction of the series on by `skip` entries and one more.
    #[inline]
    fn pass(&mut self, skip: usize) {
        let after = usize::from(self.next) + skip + 1;
        let len = self.series.len();
        self.next = (if after < len { after } else { after - len }) as u16;
    }

    #[inline]
    fn append<const N: usize>(&mut self, token: [u8; N]) -> usize {
        if let Some(piece) = &mut self.piece
            && let Some(room) = piece.bytes[usize::from(self.used)..].first_chunk_mut()
        {
            *room = token;
            self.used += N as u8;
            return 0;
        }
        self.append_slice(&token)
    }

    #[inline(never)]
    fn append_slice(&mut self, token: &[u8]) -> usize {
        let mut added = 0;
        let mut rest = token;
        loop {
            if let Some(piece) = &mut self.piece {
                let room = &mut piece.bytes[usize::from(self.used)..];
                let (now, later) = rest.split_at(rest.len().min(room.len()));
                room[..now.len()].copy_from_slice(now);
                self.used += now.len() as u8;
                rest = later;
            }
            if rest.is_empty() {
                return added;
            }
            added += self.add_piece();
        }
    }

    /// Begins the next piece, and returns by how many bytes the memory has grown.
    fn add_piece(&mut self) -> usize {
        let mut added = PIECE_BYTES;
        if self.pieces == PIECES_MAX
            && let Some(pieces) = self.piece.take()
        {
            self.sealed = Some(Sealed::after(self.sealed.take(), pieces));
            self.pieces = 0;
            added += SEALED_BYTES;
        }
        self.piece = Some(Piece::after(self.piece.take()));
        self.pieces += 1;
        self.used = 0;
        added
    }
}

impl Series {
    /// Returns the difference from the last integer, if the value is a decimal with the same power of ten.
    #[inline]
    fn delta(&mut self, value: f64) -> Option<i64> {
        if self.misses >= MISSES_MAX {
            return None;
        }
        let integer = decimal::integer_of(value, self.decimals)?;
        self.misses = 0;
        Some(integer - std::mem::replace(&mut self.integer, integer))
    }

    /// Returns a value as a part of a long token.
    fn code(&mut self, value: f64) -> Coded {
        if let Some(delta) = self.delta(value) {
            return Coded::Delta(delta);
        }
        if self.misses < MISSES_MAX
            && let Some((decimals, integer)) = decimal::fewest(value)
        {
            (self.decimals, self.integer, self.misses) = (decimals, integer, 0);
            return Coded::Rescaled(decimals, integer);
        }
        self.misses += 1;
        if self.misses == MISSES_MAX + UNTRIED {
            self.misses = MISSES_MAX - 1; // the next one is tried
        }
        Coded::Number(value)
    }
}

/// A token that is being made.
#[derive(Default)]
struct Token {
    bytes: [u8; TOKEN_BYTES_MAX],
    len: usize,
}

impl Token {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn put_number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.put(&[number as u8 | 0x80]); // the lowest eight bits
            number >>= 7;
        }
        self.put(&[number as u8]);
    }

    fn put_value(&mut self, coded: Coded) {
        let form = match coded {
            Coded::Delta(delta) => {
                self.put_number(zigzag(delta));
                DELTA
            }
            Coded::Rescaled(decimals, integer) => {
                self.put(&[decimals]);
                self.put_number(zigzag(integer));
                RESCALED
            }
            Coded::Number(number) => {
                let bytes = number.to_bits().to_be_bytes();
                let len = bytes.len() - number.to_bits().trailing_zeros() as usize / 8;
                if len + 1 < bytes.len() {
                    self.put(&[len as u8]);
                    self.put(&bytes[..len]);
                    SHORTENED
                } else {
                    self.put(&bytes);
                    WHOLE
                }
            }
        };
        self.bytes[0] |= form;
    }
}

/// Returns whether a number is a two's complement of so many bits.
#[inline]
const fn fits<const BITS: u32>(number: i64) -> bool {
    let half = 1 << (BITS - 1);
    -half <= number && number < half
}

/// The lowest bits of a number.
#[inline]
const fn low<const BITS: u32>(number: i64) -> u32 {
    number as u32 & ((1 << BITS) - 1)
}
