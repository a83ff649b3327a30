//! Columns of integers: a prediction, and packed residuals.
//!
//! Most columns are a walk or noise around a level, with few outliers. So a number is predicted as the number
//! before it plus a step ([`Predictor::Previous`]), or as a point of a line ([`Predictor::Line`]). The
//! residuals, in zigzag order, are packed with one width. Wider residuals are patches, listed before the
//! packed residuals (patched frame of reference, after Zukowski et al., "Super-scalar RAM-CPU cache
//! compression", 2006). The encoder computes the length of each candidate and takes the shortest.

use super::bits::{BitReader, BitWriter, packed_bytes};
use crate::codec::ChunkError;
use crate::codec::numbers::{self, bits};
use crate::common::cursor::Cursor;
use crate::common::zigzag::{unzigzag, zigzag};

/// The bits of the shape byte with the width of the residuals. [`WIDTH_64`] stands for 64 bits.
const WIDTH: u8 = 0x3f;
const WIDTH_64: u8 = 63;
/// The bit of the shape byte for [`Predictor::Line`].
const IS_LINE: u8 = 0x40;
/// The bit of the shape byte for patches.
const HAS_PATCHES: u8 = 0x80;

/// The number of differences from which the median is estimated.
const MEDIAN_OF: usize = 9;

/// How a number is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Predictor {
    /// The number before it, plus the step.
    Previous,
    /// A point of a line: the start, plus the step once for each number before it.
    Line,
}

/// One way to encode a column.
#[derive(Debug, Clone, Copy)]
struct Plan {
    predictor: Predictor,
    /// The prediction of the first number.
    start: i64,
    step: i64,
    width: u32,
    /// The bits that the residuals take, patches included. The size of the patches is an estimate.
    cost: usize,
}

/// Encodes a column, and appends it to `out`. `line_step` is the step of the line that the column may follow.
pub(super) fn encode(numbers: &[i64], line_step: i64, out: &mut Vec<u8>) {
    let plan = Plan::shortest(numbers, line_step);
    let patch_count = plan.residuals(numbers).filter(|residual| bits(*residual) > plan.width).count();
    let width = if plan.width >= u32::from(WIDTH_64) { WIDTH_64 } else { plan.width as u8 };
    let is_line = if plan.predictor == Predictor::Line { IS_LINE } else { 0 };
    out.push(width | is_line | if patch_count > 0 { HAS_PATCHES } else { 0 });
    numbers::put_signed(out, plan.start);
    numbers::put_signed(out, plan.step);
    if patch_count > 0 {
        numbers::put(out, patch_count as u64);
        let mut next = 0;
        for (at, residual) in plan.residuals(numbers).enumerate().filter(|(_, residual)| bits(*residual) > plan.width) {
            numbers::put(out, (at - next) as u64);
            numbers::put(out, residual);
            next = at + 1;
        }
    }
    if plan.width == 0 {
        return;
    }
    let width = if width == WIDTH_64 { u64::BITS } else { plan.width };
    let limit = u64::MAX >> (u64::BITS - width);
    let mut packed = BitWriter::new(out);
    for residual in plan.residuals(numbers) {
        packed.push(if residual <= limit { residual } else { 0 }, width);
    }
    packed.finish();
}

impl Plan {
    fn shortest(numbers: &[i64], line_step: i64) -> Self {
        let Some(&first) = numbers.first() else {
            return Self { predictor: Predictor::Previous, start: 0, step: 0, width: 0, cost: 0 };
        };
        let mut differences = Range::EMPTY;
        let mut distances = Range::EMPTY;
        let (mut before, mut line) = (first, 0_i64);
        for &number in numbers {
            differences.add(number.wrapping_sub(before));
            distances.add(number.wrapping_sub(line));
            before = number;
            line = line.wrapping_add(line_step);
        }
        let line = Self {
            predictor: Predictor::Line,
            start: distances.centre(),
            step: line_step,
            width: distances.width(),
            cost: distances.width() as usize * numbers.len(),
        };
        let medium = median_difference(numbers);
        let walk = Self::patched(numbers, medium);
        let best = if line.cost < walk.cost { line } else { walk };
        if best.width < 2 || differences.centre() == medium {
            return best;
        }
        let centred = Self::patched(numbers, differences.centre());
        if centred.cost < best.cost { centred } else { best }
    }

    /// The plan with [`Predictor::Previous`] and the best width.
    fn patched(numbers: &[i64], step: i64) -> Self {
        let start = numbers[0];
        let mut plan = Self { predictor: Predictor::Previous, start, step, width: 0, cost: 0 };
        let mut counts = [0_u32; 65];
        for residual in plan.residuals(numbers) {
            counts[bits(residual) as usize] += 1;
        }
        let widest = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
        (plan.width, plan.cost) = (widest as u32, widest * numbers.len());
        let mut patches = 0;
        for width in (0..widest).rev() {
            let bytes = 1 + (width + 1).div_ceil(7); // the distance to the patch, and its residual
            patches += 8 * bytes * counts[width + 1] as usize;
            let cost = 8 + width * numbers.len() + patches;
            if cost < plan.cost {
                (plan.width, plan.cost) = (width as u32, cost);
            }
        }
        plan
    }

    /// The differences from the predictions, in zigzag order.
    #[inline]
    fn residuals(self, numbers: &[i64]) -> impl Iterator<Item = u64> {
        let mut prediction = self.start;
        numbers.iter().map(move |&number| {
            let residual = number.wrapping_sub(prediction);
            prediction = self.next(prediction, number);
            zigzag(residual)
        })
    }

    #[inline]
    const fn next(self, prediction: i64, number: i64) -> i64 {
        match self.predictor {
            Predictor::Previous => number.wrapping_add(self.step),
            Predictor::Line => prediction.wrapping_add(self.step),
        }
    }
}

/// The smallest and the largest of some numbers.
#[derive(Debug, Clone, Copy)]
struct Range {
    min: i64,
    max: i64,
}

impl Range {
    const EMPTY: Self = Self { min: i64::MAX, max: i64::MIN };

    #[inline]
    fn add(&mut self, number: i64) {
        self.min = self.min.min(number);
        self.max = self.max.max(number);
    }

    /// The bits of the residuals, if each prediction is the centre.
    const fn width(self) -> u32 {
        bits(self.max.wrapping_sub(self.min).cast_unsigned())
    }

    /// The middle of the range. As a prediction, it leads to residuals with the fewest bits.
    const fn centre(self) -> i64 {
        let half = self.max.wrapping_sub(self.min).cast_unsigned().div_ceil(2);
        self.min.wrapping_add(half.cast_signed())
    }
}

/// The median of some of the differences between neighbours: an outlier does not move it far.
fn median_difference(numbers: &[i64]) -> i64 {
    let Some(last) = numbers.len().checked_sub(1).filter(|last| *last > 0) else { return 0 };
    let mut some = [0; MEDIAN_OF];
    let count = last.min(MEDIAN_OF);
    for (nth, difference) in some[..count].iter_mut().enumerate() {
        let at = 1 + nth * last / count;
        *difference = numbers[at].wrapping_sub(numbers[at - 1]);
    }
    some[..count].sort_unstable();
    some[count / 2]
}

/// An iterator over the numbers of an encoded column.
#[derive(Debug, Clone)]
pub(super) struct Integers<'a> {
    packed: BitReader<'a>,
    prediction: i64,
    step: i64,
    is_line: bool,
    left: usize,
    patches: Marks<'a>,
}

impl<'a> Integers<'a> {
    /// Reads a column of `count` numbers. All its lengths are checked here.
    pub(super) fn read(cursor: &mut Cursor<'a>, count: usize) -> Result<Self, ChunkError> {
        let [shape] = cursor.array()?;
        let (prediction, step) = (numbers::read_signed(cursor)?, numbers::read_signed(cursor)?);
        let patches = if shape & HAS_PATCHES == 0 {
            Marks::NONE
        } else {
            Marks::read(cursor, count, |cursor| numbers::read(cursor).map(|_| ()))?
        };
        let width = if shape & WIDTH == WIDTH_64 { u64::BITS } else { u32::from(shape & WIDTH) };
        let packed = BitReader::new(cursor.rest(), width);
        cursor.take(packed_bytes(count, width))?;
        Ok(Self { packed, prediction, step, is_line: shape & IS_LINE != 0, left: count, patches })
    }
}

impl Iterator for Integers<'_> {
    type Item = i64;

    #[inline]
    fn next(&mut self) -> Option<i64> {
        self.left = self.left.checked_sub(1)?;
        let packed = self.packed.next();
        let residual = self.patches.step(|cursor| numbers::read(cursor).ok()).unwrap_or(packed);
        let number = self.prediction.wrapping_add(unzigzag(residual));
        self.prediction = if self.is_line { self.prediction } else { number }.wrapping_add(self.step);
        Some(number)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Integers<'_> {}

/// The marked places of a column, each with an item (a patch or a raw value): `count:number (distance:number
/// item){count}`.
#[derive(Debug, Clone)]
pub(super) struct Marks<'a> {
    bytes: &'a [u8],
    /// How many numbers are before the next marked place; `usize::MAX` after the last.
    distance: usize,
}

impl<'a> Marks<'a> {
    pub(super) const NONE: Self = Self { bytes: &[], distance: usize::MAX };

    /// Reads the marked places of a column of `count` numbers.
    pub(super) fn read(
        cursor: &mut Cursor<'a>,
        count: usize,
        mut item: impl FnMut(&mut Cursor<'a>) -> Result<(), ChunkError>,
    ) -> Result<Self, ChunkError> {
        let (mut places, mut end) = (numbers::read(cursor)?, 0_u64);
        let start = cursor.rest();
        while places > 0 {
            end = end.saturating_add(numbers::read(cursor)?).saturating_add(1);
            if end > count as u64 {
                return Err(ChunkError::Invalid("a patch is beyond its column"));
            }
            item(cursor)?;
            places -= 1;
        }
        let bytes = &start[..start.len() - cursor.rest().len()];
        let mut marks = Self { bytes, distance: 0 };
        marks.find();
        Ok(marks)
    }

    /// Moves to the next number of the column. Returns its item if the number is marked.
    #[inline]
    pub(super) fn step<T>(&mut self, item: impl FnOnce(&mut Cursor<'a>) -> Option<T>) -> Option<T> {
        if self.distance > 0 {
            self.distance -= 1;
            return None;
        }
        self.take(item)
    }

    #[cold]
    fn take<T>(&mut self, item: impl FnOnce(&mut Cursor<'a>) -> Option<T>) -> Option<T> {
        let mut cursor = Cursor::new(self.bytes);
        let item = item(&mut cursor);
        self.bytes = cursor.rest();
        self.find();
        item
    }

    /// Reads the distance to the next marked place.
    fn find(&mut self) {
        let mut cursor = Cursor::new(self.bytes);
        self.distance = numbers::read(&mut cursor).map_or(usize::MAX, |distance| distance as usize);
        self.bytes = cursor.rest();
    }
}
