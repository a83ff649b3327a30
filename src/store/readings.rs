//! Queries for the first readings of a range, and their answers.

use std::ops::Range;
use std::sync::Arc;

use super::hour_samples::HourSamples;
use crate::model::{Contents, Hour, HourOffset, MS_PER_HOUR, SeriesFilter};

/// A query for the first readings of a range.
#[derive(Debug, Clone)]
pub struct ReadingsQuery {
    /// The stored ID of the device.
    pub device: Arc<str>,
    /// The first instant, and the instant after the last, in Unix milliseconds.
    pub range_ms: Range<i64>,
    /// The series whose values are wanted.
    pub series: SeriesFilter,
    /// The most instants in the answer, at least 1.
    pub max_instants: usize,
    /// The most values in the answer, at least 1.
    ///
    /// The answer may exceed this by values of its last instant, because no instant is split.
    pub max_values: usize,
}

impl ReadingsQuery {
    /// Makes the query for all stored readings of some hours.
    #[must_use]
    pub fn all(device: &str, hours: &Range<Hour>) -> Self {
        let range_ms = hours.start.start_ms()..hours.end.start_ms();
        Self {
            device: device.into(),
            range_ms,
            series: SeriesFilter::ALL,
            max_instants: usize::MAX,
            max_values: usize::MAX,
        }
    }

    /// The hours that the range touches.
    #[must_use]
    pub const fn hours(&self) -> Range<Hour> {
        Hour::of(self.range_ms.start)..Hour::at_or_after(self.range_ms.end)
    }
}

/// The first readings of a range.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstReadings {
    /// The readings by hour, ascending. No hour is empty.
    pub hours: Vec<(Hour, Contents)>,
    /// The instant up to which the answer is complete, in Unix milliseconds.
    ///
    /// `hours` has every reading of the range before this instant, and no other. The instant is the end of
    /// the range when no reading is left.
    pub complete_until_ms: i64,
}

/// Gathers the first readings of a range, hour by hour.
///
/// Its memory is bounded: it holds at most about twice [`ReadingsQuery::max_values`] values.
#[derive(Debug)]
pub struct FirstReadingsBuilder {
    range_ms: Range<i64>,
    wanted: SeriesFilter,
    /// The number of instants and values that are still wanted.
    wanted_more: (usize, usize),
    hours: Vec<(Hour, Contents)>,
    /// The hour that is being gathered.
    open: Option<HourSamples>,
    complete_until_ms: i64,
}

impl FirstReadingsBuilder {
    /// Starts with no readings.
    #[must_use]
    pub fn new(query: &ReadingsQuery) -> Self {
        Self {
            range_ms: query.range_ms.clone(),
            wanted: query.series.clone(),
            wanted_more: (query.max_instants, query.max_values),
            hours: Vec::new(),
            open: None,
            complete_until_ms: query.range_ms.end,
        }
    }

    /// Returns the samples of an hour that the range touches, to add more samples to.
    ///
    /// Callers pass hours in ascending order. `None`: the answer is complete, and needs neither this hour nor
    /// later ones.
    pub fn hour(&mut self, hour: Hour) -> Option<&mut HourSamples> {
        if self.open.as_ref().is_none_or(|open| open.hour() != hour) {
            self.close();
            if self.is_full() {
                self.complete_until_ms = self.complete_until_ms.min(hour.start_ms());
                return None;
            }
            let offset = |ms: i64| (ms - hour.start_ms()).clamp(0, MS_PER_HOUR) as HourOffset;
            let window = offset(self.range_ms.start)..offset(self.range_ms.end);
            self.open = Some(HourSamples::first(hour, window, self.wanted.clone(), self.wanted_more));
        }
        self.open.as_mut()
    }

    /// The answer, from all samples that were added.
    #[must_use]
    pub fn finish(mut self) -> FirstReadings {
        self.close();
        FirstReadings { hours: self.hours, complete_until_ms: self.complete_until_ms }
    }

    fn is_full(&self) -> bool {
        self.wanted_more.0 == 0 || self.wanted_more.1 == 0 || self.complete_until_ms < self.range_ms.end
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let hour = open.hour();
        let (contents, until) = open.finish();
        let until_ms = hour.instant_ms(until);
        if until_ms < hour.end_ms() {
            self.complete_until_ms = self.complete_until_ms.min(until_ms);
        }
        self.wanted_more.0 -= contents.reading_count();
        self.wanted_more.1 = self.wanted_more.1.saturating_sub(contents.samples().len());
        if !contents.is_empty() {
            self.hours.push((hour, contents));
        }
    }
}
