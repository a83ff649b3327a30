//! Parts of hours: readings, split where a step begins.

use super::grid::Grid;
use super::increase::grown;
use crate::model::{Contents, Fold, Hour, Metric, SeriesFilter, Stats};

/// The stats of an hour, or of a part of an hour that is inside of one step.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::query) struct Part {
    /// The start of the hour, or the first instant of the part, in Unix milliseconds.
    pub(in crate::query) ts_ms: i64,
    /// The stats of each series.
    pub(in crate::query) stats: Vec<(Metric, Stats)>,
    /// The growth of each of these series from its first to its last value. Empty if the growth follows from
    /// the stats or is not needed.
    pub(in crate::query) growth: Vec<f64>,
}

/// Splits readings into parts. Its work and memory are linear in the values.
pub(super) struct Splitter<'g> {
    grid: &'g Grid,
    series: &'g SeriesFilter,
    parts: Vec<Part>,
    /// The series of the part that is being filled, by their index in the contents of the hour.
    open: Vec<Option<OpenSeries>>,
    /// The indexes of the series that have a value in this part.
    of_part: Vec<u32>,
    /// The first instant of this part.
    first_ms: i64,
}

#[derive(Clone, Copy)]
struct OpenSeries {
    fold: Fold,
    last: f64,
    growth: f64,
}

impl<'g> Splitter<'g> {
    pub(super) const fn new(grid: &'g Grid, series: &'g SeriesFilter) -> Self {
        Self { grid, series, parts: Vec::new(), open: Vec::new(), of_part: Vec::new(), first_ms: 0 }
    }

    /// Adds readings of an hour. Readings of one hour are added in the order of time.
    pub(super) fn add(&mut self, hour: Hour, contents: &Contents) {
        let is_wanted: Vec<bool> = contents.metrics().iter().map(|metric| self.series.matches(metric)).collect();
        self.open.clear();
        self.open.resize(is_wanted.len(), None);
        let mut cuts = self.grid.cuts_of(hour).iter().map(|cut_ms| Hour::offset_of(*cut_ms)).peekable();
        for sample in contents.samples() {
            if !is_wanted[sample.metric as usize] {
                continue;
            }
            if cuts.next_if(|cut| *cut <= sample.offset).is_some() {
                while cuts.next_if(|cut| *cut <= sample.offset).is_some() {}
                self.close(hour, contents.metrics());
            }
            if self.of_part.is_empty() {
                self.first_ms = hour.instant_ms(sample.offset);
            }
            match &mut self.open[sample.metric as usize] {
                Some(open) => {
                    open.growth += grown(open.last, sample.value);
                    open.last = sample.value;
                    open.fold.add(sample.offset, sample.value);
                }
                empty => {
                    let fold = Fold::of(sample.offset, sample.value);
                    *empty = Some(OpenSeries { fold, last: sample.value, growth: 0.0 });
                    self.of_part.push(sample.metric);
                }
            }
        }
        self.close(hour, contents.metrics());
    }

    fn close(&mut self, hour: Hour, metrics: &[Metric]) {
        if self.of_part.is_empty() {
            return;
        }
        let count = self.of_part.len();
        let mut part =
            Part { ts_ms: self.first_ms, stats: Vec::with_capacity(count), growth: Vec::with_capacity(count) };
        for metric in self.of_part.drain(..) {
            if let Some(open) = self.open[metric as usize].take() {
                part.stats.push((metrics[metric as usize].clone(), open.fold.finish(hour)));
                part.growth.push(open.growth);
            }
        }
        self.parts.push(part);
    }

    /// The parts, in the order in which they were added.
    pub(super) fn finish(self) -> Vec<Part> {
        self.parts
    }
}
