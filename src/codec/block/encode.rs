//! Encodes samples as blocks.

use std::ops::Range;

use super::{BLOCK_INSTANTS, integers, values};
use crate::codec::numbers;
use crate::model::Sample;

/// The times of a series are compared with those of at most this many earlier series. So a block of many
/// series with different times costs linear work.
const COMPARED_TIMES: usize = 8;

/// Encodes samples as blocks. The grammar is on [`super::Block`].
///
/// It reuses its buffers, which take some KiB for each series of a block.
#[derive(Debug, Default)]
pub struct BlockEncoder {
    by_series: Vec<Sample>,
    numbers: Vec<i64>,
    values: Vec<f64>,
    /// The series with times of their own, which later series may share: the place of each, and the range of
    /// its samples in `by_series`.
    times: Vec<(usize, Range<usize>)>,
}

impl BlockEncoder {
    /// Encodes `samples` as blocks, and appends them to `out`.
    ///
    /// # Panics
    /// In debug builds, when the samples do not ascend by [`Sample::key`].
    pub fn encode(&mut self, samples: &[Sample], out: &mut Vec<u8>) {
        debug_assert!(samples.is_sorted_by(|a, b| a.key() < b.key()), "samples ascend");
        let (mut start, mut instants, mut offset) = (0, 0, None);
        for (at, sample) in samples.iter().enumerate() {
            if offset != Some(sample.offset) {
                if instants == BLOCK_INSTANTS {
                    self.encode_block(&samples[start..at], out);
                    (start, instants) = (at, 0);
                }
                (instants, offset) = (instants + 1, Some(sample.offset));
            }
        }
        if start < samples.len() {
            self.encode_block(&samples[start..], out);
        }
    }

    fn encode_block(&mut self, samples: &[Sample], out: &mut Vec<u8>) {
        self.times.clear();
        if samples.iter().all(|sample| sample.metric == samples[0].metric) {
            numbers::put(out, 1);
            numbers::put(out, samples[0].metric.into());
            self.encode_times(samples, out);
            self.encode_values(samples, out);
            return;
        }
        let mut by_series = std::mem::take(&mut self.by_series);
        by_series.clear();
        by_series.extend_from_slice(samples);
        by_series.sort_by_key(|sample| sample.metric); // stable: the samples of a series stay in time order
        let series = by_series.chunk_by(|a, b| a.metric == b.metric);
        numbers::put(out, series.clone().count() as u64);
        let (mut start, mut metric) = (0, 0);
        for (place, samples) in series.enumerate() {
            numbers::put(out, (samples[0].metric - metric).into());
            metric = samples[0].metric;
            let recent = self.times.iter().rev().take(COMPARED_TIMES);
            let same = recent.map(|(place, of)| (*place, &by_series[of.clone()])).find(|(_, of)| {
                of.len() == samples.len() && of.iter().zip(samples).all(|(one, other)| one.offset == other.offset)
            });
            if let Some((place, _)) = same {
                numbers::put(out, place as u64 * 2 + 1);
            } else {
                self.encode_times(samples, out);
                self.times.push((place, start..start + samples.len()));
            }
            self.encode_values(samples, out);
            start += samples.len();
        }
        self.by_series = by_series;
    }

    fn encode_times(&mut self, samples: &[Sample], out: &mut Vec<u8>) {
        numbers::put(out, (samples.len() as u64 - 1) * 2);
        self.numbers.clear();
        self.numbers.extend(samples.iter().map(|sample| i64::from(sample.offset)));
        let (first, last) = (self.numbers[0], self.numbers[samples.len() - 1]);
        let intervals = (samples.len() as i64 - 1).max(1);
        integers::encode(&self.numbers, (last - first + intervals / 2) / intervals, out);
    }

    fn encode_values(&mut self, samples: &[Sample], out: &mut Vec<u8>) {
        self.values.clear();
        self.values.extend(samples.iter().map(|sample| sample.value));
        values::encode(&self.values, &mut self.numbers, out);
    }
}
