//! Columns of values: decimals as integers, other values as their bits.
//!
//! Sensors send decimals, so most columns are integers after a multiplication by a power of ten (the idea of
//! ALP: Afroozeh, Kuffo and Boncz, "ALP: Adaptive lossless floating-point compression", 2023). The encoder
//! checks that each value comes back with the same bits. Values that do not come back (-0.0, NaN, more
//! digits) are listed raw. If there are many of them, the column has the bits of all values, as integers that
//! sort as the values do, and without the lowest bits that no value uses.

use super::integers::{self, Integers, Marks};
use crate::codec::ChunkError;
use crate::codec::numbers::{self, TENTHS_OF_BITS_PER_DECIMAL};
use crate::common::cursor::Cursor;

const POWERS: [f64; 15] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14];

/// The bit of the scale byte for values that are listed raw.
const HAS_RAW: u8 = 0x80;
/// The first scale byte of columns of bits. The number of unused lowest bits is added to it.
const BITS: u8 = 16;
const BITS_END: u8 = BITS + 64;

/// The most values of a column that are looked at first, to choose the number of decimals.
const LOOK_AT: usize = 12;
/// The cost of a raw value beside its packed number, in tenths of a bit: 64 bits, and a byte for its place.
const TENTHS_OF_BITS_OF_RAW: usize = 720;

/// Appends a column of values. `numbers` is scratch memory.
pub(super) fn encode(values: &[f64], numbers: &mut Vec<i64>, out: &mut Vec<u8>) {
    match decimals_of(values, numbers) {
        Some((decimals, 0)) => out.push(decimals),
        Some((decimals, raw)) => {
            out.push(decimals | HAS_RAW);
            numbers::put(out, raw as u64);
            let mut next = 0;
            for (at, value) in values.iter().enumerate().filter(|(_, value)| scaled(**value, decimals).is_none()) {
                numbers::put(out, (at - next) as u64);
                out.extend_from_slice(&value.to_le_bytes());
                next = at + 1;
            }
        }
        None => {
            let used = values.iter().fold(0, |used, value| used | value.to_bits());
            let unused = used.trailing_zeros().min(62);
            out.push(BITS + unused as u8);
            numbers.clear();
            numbers.extend(values.iter().map(|value| to_ordered(value.to_bits(), unused)));
        }
    }
    integers::encode(numbers, 0, out);
}

/// Scales the values to integers.
///
/// A value without an exact integer gets the integer of the value before it.
///
/// Returns the number of decimals and the number of values without an exact integer. `None`: these are too
/// many.
fn decimals_of(values: &[f64], numbers: &mut Vec<i64>) -> Option<(u8, usize)> {
    let step = values.len().div_ceil(LOOK_AT).max(1);
    let mut decimals = usual_decimals(values.iter().step_by(step))?;
    let mut raw = scale(values, decimals, numbers);
    if raw > values.len() / 16 + 1 {
        decimals = usual_decimals(values.iter())?; // the others have more digits than those looked at
        raw = scale(values, decimals, numbers);
    }
    (raw <= values.len() / 4).then_some((decimals, raw))
}

/// The number of decimals with which the column takes the fewest bits; `None` if most values have more
/// digits.
fn usual_decimals<'a>(values: impl Iterator<Item = &'a f64>) -> Option<u8> {
    let mut counts = [0_usize; POWERS.len() + 1];
    let (mut seen, mut longer) = (0, 0);
    for value in values {
        let decimals = (0..POWERS.len()).find(|decimals| scaled(*value, *decimals as u8).is_some());
        counts[decimals.unwrap_or(POWERS.len())] += 1;
        seen += 1;
        longer += usize::from(decimals.is_none());
        if longer > 3 && longer * 2 > seen {
            return None;
        }
    }
    let cost = |decimals: usize| {
        let raw: usize = counts[decimals + 1..].iter().sum();
        TENTHS_OF_BITS_PER_DECIMAL * decimals * seen + TENTHS_OF_BITS_OF_RAW * raw
    };
    (0..POWERS.len()).min_by_key(|decimals| cost(*decimals)).map(|decimals| decimals as u8)
}

fn scale(values: &[f64], decimals: u8, numbers: &mut Vec<i64>) -> usize {
    numbers.clear();
    let (mut before, mut raw) = (0, 0);
    numbers.extend(values.iter().map(|value| {
        match scaled(*value, decimals) {
            Some(number) => before = number,
            None => raw += 1,
        }
        before
    }));
    raw
}

/// The value times 10^`decimals`, rounded; `None` if this integer does not give back the same bits.
#[inline]
fn scaled(value: f64, decimals: u8) -> Option<i64> {
    /// The sum of a small number and this one has no bits for a fraction, so it is rounded.
    const ROUND: f64 = 1.5 * (1_u64 << 52) as f64;
    let scaled = value * POWERS[decimals as usize];
    let number = (scaled + ROUND - ROUND) as i64;
    (unscaled(number, decimals).to_bits() == value.to_bits()).then_some(number)
}

#[inline]
fn unscaled(number: i64, decimals: u8) -> f64 {
    number as f64 / POWERS[decimals as usize]
}

/// Converts the bits of a value to an integer that sorts as the value does. The lowest `unused` bits are left
/// out.
const fn to_ordered(bits: u64, unused: u32) -> i64 {
    let magnitude = (bits << 1 >> 1 >> unused).cast_signed();
    if bits >> 63 == 0 { magnitude } else { !magnitude }
}

/// The inverse of [`to_ordered`].
#[inline]
const fn from_ordered(number: i64, unused: u32) -> u64 {
    let magnitude = (if number < 0 { !number } else { number }).cast_unsigned();
    magnitude << unused | (number.cast_unsigned() >> 63 << 63)
}

/// An iterator over the values of an encoded column.
#[derive(Debug, Clone)]
pub(super) struct Values<'a> {
    numbers: Integers<'a>,
    /// The number of decimals, or [`BITS`] plus the number of unused bits.
    scale: u8,
    raw: Marks<'a>,
}

impl<'a> Values<'a> {
    /// Reads a column of `count` values. All its lengths are checked here.
    pub(super) fn read(cursor: &mut Cursor<'a>, count: usize) -> Result<Self, ChunkError> {
        let [byte] = cursor.array()?;
        let scale = byte & !HAS_RAW;
        if (scale as usize >= POWERS.len() && scale < BITS) || scale >= BITS_END {
            return Err(ChunkError::Invalid("a scale is not known"));
        }
        let raw = if byte & HAS_RAW == 0 {
            Marks::NONE
        } else {
            Marks::read(cursor, count, |cursor| Ok(cursor.take(size_of::<f64>()).map(|_| ())?))?
        };
        Ok(Self { numbers: Integers::read(cursor, count)?, scale, raw })
    }
}

impl Iterator for Values<'_> {
    type Item = f64;

    #[inline]
    fn next(&mut self) -> Option<f64> {
        let number = self.numbers.next()?;
        if let Some(raw) = self.raw.step(|cursor| cursor.array().ok()) {
            return Some(f64::from_le_bytes(raw));
        }
        Some(if self.scale < BITS {
            unscaled(number, self.scale)
        } else {
            f64::from_bits(from_ordered(number, u32::from(self.scale - BITS)))
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.numbers.size_hint()
    }
}

impl ExactSizeIterator for Values<'_> {}
