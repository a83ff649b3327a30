//! Readings as a stream of bytes, in the order of their arrival.
//!
//! An open bucket gets its readings one by one, for an hour. [`Stream`] appends each value as a token: by how
//! much its time and its value differ from what the readings before predict. A token of a sensor that sends
//! one decimal each minute, some milliseconds early or late, takes two bytes.
//!
//! The codec of stored chunks has columns of a whole bucket, in the order of time. It does not suit an open
//! bucket. It would encode the bucket again and again. It would also lose the number of accepted readings,
//! and their order of arrival: of several values of one instant, the last one is kept. A stream encodes each
//! value once, in some nanoseconds, in any order of time. The stream of an hour takes less memory than 16
//! plain values.
//!
//! The writer and the reader of a stream make the same **predictions** after each token:
//! - The **time** of a reading is the last one plus a step, which stays the same while it is about right
//!   ([`Times`]).
//! - The **series** of a value is the one that follows the series of the last value in a table. The table has
//!   the series in the order of their first appearance. After its last entry comes the first one.
//! - The **value** is the last one of its series, as a decimal: an integer divided by a power of ten
//!   ([`decimal`]).
//!
//! A token has one of these forms. `t` is the difference from the predicted time. `d` is the difference from
//! the last integer of the series. Both are two's complements, the highest bit first. All but the last form
//! need the predicted series and the same power of ten.
//!
//! ```text
//! 0tttttttt ddddddd          the first value of a reading: 15 bits
//! 10dddddd                   another value of the same reading
//! 110tttttttttttt ddddddddd  the first value of a reading: 21 bits
//! 1110dddd                   the first value of a reading at the predicted time
//! 1111rsvv SERIES TIME VALUE any value. r: it is the first of a reading; s: of another series
//!   SERIES, if s: the number of table entries to skip, 1 to 16;
//!                 or 0 and the metric's id: a new entry;
//!                 or 17 and the metric's id: a series that the table has no place for
//!   TIME, if r:   t
//!   VALUE, by v:  0: d   1: the power of ten (a byte), and the integer   2: the eight bytes of the number
//!                 3: a byte n, and the n highest bytes of the number; the others are 0
//! ```
//!
//! Numbers without a length are variable-length integers (LEB128), signed ones in zigzag order.
//!
//! A token has at most [`TOKEN_BYTES_MAX`] bytes and takes a bounded time, whatever the readings are: the
//! table is limited, a series is searched among the next entries only, and a series whose values are no
//! decimals is rarely tried again. A series that the search misses gets a second entry.

use std::sync::Arc;

use smallvec::SmallVec;

use self::pieces::{PIECE_BYTES, PIECE_LEN, PIECES_MAX, Piece, SEALED_BYTES, Sealed};
use super::slots::Key;
use crate::common::zigzag::{unzigzag, zigzag};
use crate::model::HourOffset;

mod decimal;
mod pieces;
#[cfg(test)]
mod tests;

pub(super) use pieces::Packed;

/// The most bytes of a token: its head, a series, a time, and a power of ten with an integer.
const TOKEN_BYTES_MAX: usize = 1 + 6 + 5 + 11;

/// The head of a long token, the last of the forms: it can have any value.
const LONG: u8 = 0b1111_0000;
/// In a long token: the value is the first of a reading.
const STARTS_READING: u8 = 0b1000;
/// In a long token: the series is not the predicted one.
const OTHER_SERIES: u8 = 0b0100;

/// The forms of a value in a long token.
const DELTA: u8 = 0;
const RESCALED: u8 = 1;
const WHOLE: u8 = 2;
const SHORTENED: u8 = 3;

/// The most entries of the table that are searched and skipped.
const SKIP_MAX: usize = 16;
/// In place of a number of entries to skip: the series is new.
const NEW_SERIES: u64 = 0;
/// In place of a number of entries to skip: the series is not in the table, which is full.
const NO_ENTRY: u64 = SKIP_MAX as u64 + 1;

/// The most entries of the table of series.
const SERIES_MAX: usize = 512;

/// The number of values in a row that are no decimals before a pause.
///
/// The next [`UNTRIED`] values of the series are then not tried as decimals.
const MISSES_MAX: u8 = 4;

/// The number of values that are not tried as decimals after [`MISSES_MAX`].
const UNTRIED: u8 = 16;

/// The time of the last reading, and the step to the next one.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    last: HourOffset,
    step: u32,
}

impl Times {
    /// A difference of at most this many milliseconds never changes the step.
    const ON_TIME: u32 = 1 << 7;

    /// The difference between a time and the predicted one.
    #[inline]
    const fn difference(self, offset: HourOffset) -> i32 {
        offset as i32 - (self.last + self.step) as i32
    }

    /// The time that differs from the predicted one by this difference.
    const fn at(self, difference: i32) -> HourOffset {
        ((self.last + self.step) as i32 + difference) as u32
    }

    /// Predicts the reading after the one at `offset`.
    ///
    /// Most sensors send at intervals of whole seconds. So a step of more than a second is whole seconds, and
    /// is not changed by a reading that is a little early or late.
    #[inline]
    fn advance(&mut self, offset: HourOffset) {
        let passed = offset as i32 - self.last as i32;
        let tolerance = if passed < 10_000 { Self::ON_TIME } else { 2_047 };
        if passed > 0 && passed.abs_diff(self.step as i32) > tolerance {
            let passed = passed as u32;
            self.step = if passed < 1_000 { passed } else { (passed + 500) / 1_000 * 1_000 };
        }
        self.last = offset;
    }

    /// Does what [`Self::advance`] does for a difference of eight bits, which never changes the step.
    #[inline]
    const fn advance_on_time(&mut self, offset: HourOffset) {
        self.last = offset;
    }
}

/// The last value of a series, from which the next one is predicted.
#[derive(Debug, Clone, Copy)]
struct Series {
    /// The last value, times ten to the power of `decimals`.
    integer: i64,
    /// The series' id in the names of the bucket.
    metric: Key,
    /// The number of decimals: 22.45 is the integer 2245 with 2 decimals.
    decimals: u8,
    /// How many values in a row were no decimals. Only [`Stream`] uses it.
    misses: u8,
}

impl Series {
    const fn new(metric: Key) -> Self {
        Self { integer: 0, metric, decimals: 0, misses: 0 }
    }

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

/// A stream that grows.
#[derive(Debug, Default)]
pub(super) struct Stream {
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
    /// A new number of decimals, and the integer.
    Rescaled(u8, i64),
    /// A number that is no decimal.
    Number(f64),
}

/// How a long token ([`LONG`]) names the series of its value: the `SERIES` of the form.
#[derive(Debug, Clone, Copy)]
enum Named {
    Predicted,
    Skip(usize),
    New(Key),
    NoEntry(Key),
}

impl Stream {
    /// The memory outside of the struct, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let series = if self.series.spilled() { self.series.capacity() * size_of::<Series>() } else { 0 };
        usize::from(self.pieces) * PIECE_BYTES + Sealed::bytes(self.sealed.as_ref()) + series
    }

    /// The number of values.
    #[inline]
    pub(super) const fn values(&self) -> u32 {
        self.values
    }

    /// The number of pieces that [`Self::copy`] copies.
    pub(super) const fn pieces(&self) -> usize {
        self.pieces as usize
    }

    /// Reads the place of the next byte, so that it is in the processor's caches.
    #[inline]
    pub(super) fn touch(&self) -> usize {
        self.piece.as_ref().map_or(0, |piece| usize::from(piece.bytes[usize::from(self.used).min(PIECE_LEN - 1)]))
    }

    /// Returns the stream so far. Shares sealed pieces and copies the others.
    pub(super) fn copy(&self) -> Packed {
        Packed { sealed: self.sealed.clone(), piece: self.piece.clone(), used: self.used, values: self.values }
    }

    pub(super) fn into_packed(self) -> Packed {
        Packed { sealed: self.sealed, piece: self.piece, used: self.used, values: self.values }
    }

    /// Appends a value, and returns by how many bytes the memory has grown.
    #[inline]
    pub(super) fn push(&mut self, offset: HourOffset, starts_reading: bool, metric: Key, value: f64) -> usize {
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

    /// Moves the predicted series on by `skip + 1` entries of the table.
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

/// Returns whether a number fits into a two's complement of `BITS` bits.
#[inline]
const fn fits<const BITS: u32>(number: i64) -> bool {
    let half = 1 << (BITS - 1);
    -half <= number && number < half
}

/// The lowest `BITS` bits of a number.
#[inline]
const fn low<const BITS: u32>(number: i64) -> u32 {
    number as u32 & ((1 << BITS) - 1)
}

/// One value as it was accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrived {
    pub(super) value: f64,
    pub(super) offset: HourOffset,
    /// The metric's id in the names of the bucket.
    pub(super) metric: Key,
    /// Whether the value is the first of its reading.
    pub(super) starts_reading: bool,
}

impl Packed {
    /// Calls `visit` with the values in the order of their arrival.
    #[inline]
    pub(super) fn each(&self, mut visit: impl FnMut(Arrived)) {
        let bytes = self.to_bytes();
        let mut reader = Reader { rest: &bytes, times: Times::default(), series: Vec::new(), next: 0 };
        for _ in 0..self.values {
            visit(reader.value());
        }
        debug_assert!(reader.rest.is_empty(), "a token for each value");
    }
}

/// Reads the bytes of a [`Stream`], token by token.
struct Reader<'a> {
    rest: &'a [u8],
    times: Times,
    series: Vec<Series>,
    next: usize,
}

impl Reader<'_> {
    #[inline]
    fn value(&mut self) -> Arrived {
        if let &[first @ ..=0b0111_1111, second, ref rest @ ..] = self.rest {
            self.rest = rest;
            let token = u32::from_be_bytes([0, 0, first, second]);
            self.times.advance_on_time(self.times.at(signed::<8>(token >> 7)));
            return self.predicted(signed::<7>(token), true);
        }
        let first = self.byte();
        match first.leading_ones() {
            1 => self.predicted(signed::<6>(first.into()), false),
            2 => {
                let token = u32::from_be_bytes([0, first, self.byte(), self.byte()]);
                self.advance(signed::<12>(token >> 9));
                self.predicted(signed::<9>(token), true)
            }
            3 => {
                self.times.advance_on_time(self.times.at(0));
                self.predicted(signed::<4>(first.into()), true)
            }
            _ => self.long(first ^ LONG),
        }
    }

    #[inline]
    fn advance(&mut self, difference: i32) {
        self.times.advance(self.times.at(difference));
    }

    /// Returns a value of the predicted series.
    #[inline]
    fn predicted(&mut self, delta: i32, starts_reading: bool) -> Arrived {
        let series = &mut self.series[self.next];
        series.integer += i64::from(delta);
        let value = decimal::value_of(series.integer, series.decimals);
        let arrived = Arrived { value, offset: self.times.last, metric: series.metric, starts_reading };
        self.pass(0);
        arrived
    }

    #[inline(never)]
    fn long(&mut self, head: u8) -> Arrived {
        let mut at = self.next;
        let mut no_entry = None;
        if head & OTHER_SERIES == 0 {
            self.pass(0);
        } else {
            match self.number() {
                NEW_SERIES => {
                    at = self.series.len();
                    let metric = self.metric();
                    self.series.push(Series::new(metric));
                    self.next = 0;
                }
                NO_ENTRY => no_entry = Some(Series::new(self.metric())),
                skip => {
                    at = (self.next + skip as usize) % self.series.len();
                    self.pass(skip as usize);
                }
            }
        }
        let starts_reading = head & STARTS_READING != 0;
        if starts_reading {
            let difference = self.signed_number() as i32;
            self.advance(difference);
        }
        let mut series = no_entry.unwrap_or_else(|| self.series[at]);
        let value = match head & 0b11 {
            DELTA => {
                series.integer += self.signed_number();
                decimal::value_of(series.integer, series.decimals)
            }
            RESCALED => {
                series.decimals = self.byte();
                series.integer = self.signed_number();
                decimal::value_of(series.integer, series.decimals)
            }
            form => {
                let len = if form == WHOLE { size_of::<f64>() } else { usize::from(self.byte()) };
                let mut bytes = [0; size_of::<f64>()];
                bytes[..len].copy_from_slice(self.take(len));
                f64::from_be_bytes(bytes)
            }
        };
        if no_entry.is_none() {
            self.series[at] = series;
        }
        Arrived { value, offset: self.times.last, metric: series.metric, starts_reading }
    }

    #[inline]
    fn pass(&mut self, skip: usize) {
        let after = self.next + skip + 1;
        self.next = if after < self.series.len() { after } else { after - self.series.len() };
    }

    fn metric(&mut self) -> Key {
        Key::new(self.number() as u32).expect("the writer has written a key")
    }

    #[inline]
    fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    #[inline]
    fn take(&mut self, len: usize) -> &[u8] {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return number;
            }
            shift += 7;
        }
    }

    fn signed_number(&mut self) -> i64 {
        unzigzag(self.number())
    }
}

/// The number whose two's complement is the lowest `BITS` bits.
#[inline]
const fn signed<const BITS: u32>(bits: u32) -> i32 {
    (bits << (32 - BITS)).cast_signed() >> (32 - BITS)
}
