//! Encodes values as columns.

use super::simple8b::{Slot, TOO_LARGE, Words};
use super::{DATE, DOUBLE, END, PLAIN, SCALES, scaled};
use crate::codec::numbers::TENTHS_OF_BITS_PER_DECIMAL;
use crate::common::zigzag::zigzag;

/// The bits that an increment of most doubles takes in the mode [`PLAIN`].
const BITS_OF_PLAIN: usize = 56;
/// The number of decimals that each of [`SCALES`] keeps.
const DECIMALS: [usize; SCALES.len()] = [0, 1, 2, 4, 8];
/// The bits that a value costs if it is not exact at the scale: it becomes a literal, and so does the next
/// value.
const BITS_OF_LITERALS: usize = 2 * 80;

/// Encodes columns, and reuses its buffer.
#[derive(Debug, Default)]
pub struct ColumnEncoder {
    slots: Vec<Slot>,
}

impl ColumnEncoder {
    /// Makes an encoder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a column of dates, in Unix milliseconds.
    pub fn dates(&mut self, instants_ms: impl Iterator<Item = i64>, out: &mut Vec<u8>) {
        let mut before: Option<(i64, i64)> = None;
        for instant in instants_ms {
            let difference = before.map_or(0, |(before, _)| instant.wrapping_sub(before));
            let increment = before.map(|(_, difference_before)| zigzag(difference.wrapping_sub(difference_before)));
            if let Some(increment) = increment.filter(|increment| *increment < TOO_LARGE) {
                self.slots.push(Some(increment));
                before = Some((instant, difference));
            } else {
                self.flush(PLAIN, out);
                put_literal(out, DATE, instant.to_le_bytes());
                before = Some((instant, 0));
            }
        }
        self.flush(PLAIN, out);
        out.push(END);
    }

    /// Appends a column of doubles; `None` is a missing value.
    pub fn doubles(&mut self, values: impl Iterator<Item = Option<f64>> + Clone, out: &mut Vec<u8>) {
        let mode = shortest_mode(values.clone().flatten());
        let mut before: Option<i64> = None;
        for value in values {
            let Some(value) = value else {
                self.slots.push(None);
                continue;
            };
            let number = safely_scaled(value, mode);
            let increment = before.zip(number).map(|(before, number)| zigzag(number.wrapping_sub(before)));
            if let Some(increment) = increment.filter(|increment| *increment < TOO_LARGE) {
                self.slots.push(Some(increment));
            } else {
                self.flush(mode_after(before, mode), out);
                put_literal(out, DOUBLE, value.to_le_bytes());
            }
            before = number;
        }
        self.flush(mode_after(before, mode), out);
        out.push(END);
    }

    /// Appends the increments since the last literal.
    fn flush(&mut self, mode: u8, out: &mut Vec<u8>) {
        let (mut control, mut words) = (0, 16);
        for word in Words::of(&self.slots) {
            if words == 16 {
                (control, words) = (out.len(), 0);
                out.push(mode << 4);
            }
            out[control] = mode << 4 | words;
            out.extend_from_slice(&word.to_le_bytes());
            words += 1;
        }
        self.slots.clear();
    }
}

/// The integer for a double in `mode`; `None` if it is not exact, or might not be for a server that rounds
/// the product in another way.
fn safely_scaled(value: f64, mode: u8) -> Option<i64> {
    let product = mode.checked_sub(PLAIN + 1).map(|place| value * SCALES[place as usize]);
    scaled(value, mode).filter(|number| product.is_none_or(|product| (product - *number as f64).abs() < 0.25))
}

/// The mode of the increments after a double with the integer `before`. If the double has no integer, only
/// missing values can follow it.
const fn mode_after(before: Option<i64>, mode: u8) -> u8 {
    if before.is_some() { mode } else { PLAIN }
}

fn put_literal(out: &mut Vec<u8>, kind: u8, value: [u8; 8]) {
    out.extend_from_slice(&[kind, 0]);
    out.extend_from_slice(&value);
}

/// Estimates which mode makes the shortest column.
fn shortest_mode(values: impl Iterator<Item = f64>) -> u8 {
    let mut counts = [0_usize; SCALES.len() + 1];
    for value in values {
        let is_exact = |place: &usize| safely_scaled(value, PLAIN + 1 + *place as u8).is_some();
        counts[(0..SCALES.len()).find(is_exact).unwrap_or(SCALES.len())] += 1;
    }
    let all: usize = counts.iter().sum();
    let cost = |mode: &u8| match mode.checked_sub(PLAIN + 1) {
        None => all * BITS_OF_PLAIN,
        Some(place) => {
            let literals: usize = counts[place as usize + 1..].iter().sum();
            all * DECIMALS[place as usize] * TENTHS_OF_BITS_PER_DECIMAL / 10 + literals * BITS_OF_LITERALS
        }
    };
    (PLAIN + 1..=PLAIN + SCALES.len() as u8).chain([PLAIN]).min_by_key(cost).unwrap_or(PLAIN)
}
