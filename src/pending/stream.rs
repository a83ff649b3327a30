//! Readings as a stream of bytes, in the order of their arrival.
//!
//! An open bucket gets its readings one by one, for an hour. [`Stream`] appends each value as a token: by how
//! much its time and its value differ from what the readings before predict. A token of a sensor that sends
//! one decimal each minute, some milliseconds early or late, takes two bytes.
//!
//! The codec of stored chunks has columns of a whole bucket in the order of time. It would have to encode an
//! open bucket again and again, and would lose the order of arrival, by which the last of several values of
//! one instant is kept and accepted readings are counted. A stream encodes each value once, in some
//! nanoseconds and whatever the order. An hour as a stream takes less memory than a tail of 16 plain values.
//!
//! Both sides of the stream make the same **predictions** after each token:
//! - The **time** of a reading is the last one plus a step, which stays the same while it is about right
//!   ([`Times`]).
//! - The **series** of a value is the one after that of the last value, in a table of series by their first
//!   appearance. After the last entry comes the first one.
//! - The **value** is the last one of its series, as a decimal: an integer divided by a power of ten
//!   ([`decimal`]).
//!
//! A token has one of these forms. `t` is the difference from the predicted time and `d` from the last
//! integer, as two's complements, the highest bit first. All but the last form need the predicted series and
//! the same power of ten.
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

use super::slots::Key;
use crate::model::HourOffset;

mod decimal;
mod pieces;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub(super) use pieces::Packed;
pub(super) use reader::Arrived;
pub(super) use writer::Stream;

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

/// The most entries of the table.
const SERIES_MAX: usize = 512;

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

    /// The time that differs so much from the predicted one.
    const fn at(self, difference: i32) -> HourOffset {
        ((self.last + self.step) as i32 + difference) as u32
    }

    /// Predicts the reading after the one at `offset`.
    ///
    /// Sensors send every so many seconds. So a step of more than a second is whole seconds, and is not
    /// changed by a reading that is a little early or late.
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
    /// The last value as a decimal.
    integer: i64,
    /// The series' id in the names of the bucket.
    metric: Key,
    /// The power of ten that divides `integer`.
    decimals: u8,
    /// How many values were no decimals. Only the writer uses it.
    misses: u8,
}

impl Series {
    const fn new(metric: Key) -> Self {
        Self { integer: 0, metric, decimals: 0, misses: 0 }
    }
}
