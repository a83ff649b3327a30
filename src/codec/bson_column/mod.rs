//! `BSONColumn`: the columns of MongoDB's own time-series buckets (binary data of subtype 7).
//!
//! A MongoDB server unpacks documents with such columns itself, in a plain collection too (`$_unpackBucket`),
//! so packed documents can be read with any client. This is a codec for columns of dates and of doubles.
//!
//! # Grammar
//! Numbers are little-endian.
//! ```text
//! column  = item{} 0:u8
//! item    = type:u8 0:u8 value          a literal: 9 and an i64 of Unix milliseconds, or 1 and an f64
//!         | control:u8 word{words}      increments; control: mode in the high bits, words - 1 in the low
//! word    = u64                         Simple8b: the selector in the lowest bits, then slots
//! slot    = an increment in zigzag order, or all bits set for a missing value
//! ```
//! Selectors 1 to 14 pack 60 to 1 slots, and selector 15 repeats the last slot 120 to 1,920 times. Selectors
//! 7 and 8 have variants whose slots leave out trailing zeros (`simple8b`).
//!
//! An increment of dates changes the difference between two neighbouring dates, which is 0 after a literal.
//! An increment of doubles changes an integer: the bits of the double in mode 8, and the double times 1, 10,
//! 100, 10^4, 10^8 in modes 9 to 13. The double before the increment must be exact at that scale.
//!
//! This code was written from descriptions of the format, and is tested against a real server in both
//! directions. The encoder uses one scale for a column, and no variants of selectors. It scales a double only
//! if its product is close to an integer, because a server rounds the product by a rule of its own.

mod decode;
mod encode;
mod simple8b;

pub use decode::{Dates, Doubles};
pub use encode::ColumnEncoder;

const DATE: u8 = 9;
const DOUBLE: u8 = 1;
const END: u8 = 0;

/// The mode of increments of dates, and of the bits of doubles.
const PLAIN: u8 = 8;
/// The powers of ten by which doubles are scaled, from mode 9 on.
const SCALES: [f64; 5] = [1e0, 1e1, 1e2, 1e4, 1e8];

/// The integer for a double in `mode`; `None` if this integer does not give back the same double.
#[inline]
fn scaled(value: f64, mode: u8) -> Option<i64> {
    let Some(place) = mode.checked_sub(PLAIN + 1) else { return Some(value.to_bits().cast_signed()) };
    let number = (value * SCALES[place as usize]).round();
    let is_exact = number.abs() < (1_u64 << 53) as f64;
    (is_exact && unscaled(number as i64, mode).to_bits() == value.to_bits()).then_some(number as i64)
}

/// The inverse of [`scaled`].
#[inline]
fn unscaled(number: i64, mode: u8) -> f64 {
    match mode.checked_sub(PLAIN + 1) {
        None => f64::from_bits(number.cast_unsigned()),
        Some(place) => number as f64 / SCALES[place as usize],
    }
}

#[cfg(test)]
mod tests;
