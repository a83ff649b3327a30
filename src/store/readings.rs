//! What a query asks of a store's readings, and what the store answers.

use std::ops::Range;
use std::sync::Arc;

use super::hour_samples::{HourSamples, Wanted};
use crate::model::{Contents, Hour, HourOffset, MS_PER_HOUR, Metric};

/// A query for the first readings of a range.
#[derive(Debug, Clone)]
pub struct ReadingsQuery {
    /// The device id.
    pub device: Arc<str>,
    /// The first instant, and the instant behind the last, in Unix milliseconds.
    pub range_ms: Range<i64>,
    /// The metrics; empty: all.
    pub metrics: Vec<Metric>,
    /// How many instants are enough, at least 1.
    pub max_instants: usize,
    /// How many values are enough, at least 1. The last instant is whole even so.
    pub max_values: usize,
}

impl ReadingsQuery {
    /// Everything stored of some hours.
    #[must_use]
    pub fn all(device: &str, hours: &Range<Hour>) -> Self {
        let range_ms = hours.start.start_ms()..hours.end.start_ms();
        Self { device: device.into(), range_ms, metrics: Vec::new(), max_instants: usize::MAX, max_values: usize::MAX }
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
    /// Every reading of the range before this instant (Unix milliseconds) is in `hours`, and none behind it.
    /// The end of the range when nothing is left.
    pub complete_until_ms: i64,
}

/// Gathers the first readings of a range, hour by hour, in bounded memory: at most about twice the values
/// that [`ReadingsQuery`] asks for.
#[derive(Debug)]
pub struct Gathered {
    range_ms: Range<i64>,
    wanted: Wanted,
    /// How many more instants and values are wanted.
    room: (usize, usize),
    hours: Vec<(Hour, Contents)>,
    open: Option<HourSamples>,
    complete_until_ms: i64,
}

impl Gathered {
    /// Nothing yet.
    #[must_use]
    pub fn new(query: &ReadingsQuery) -> Self {
        let wanted = (!query.metrics.is_empty()).then(|| Arc::new(query.metrics.iter().cloned().collect()));
        Self {
            range_ms: query.range_ms.clone(),
            wanted,
            room: (query.max_instants, query.max_values),
            hours: Vec::new(),
            open: None,
            complete_until_ms: query.range_ms.end,
        }
    }

    /// The samples of an hour that the range touches, to push more into. Hours come in ascending order.
    /// `None`: there is enough; the hour and those behind it are not needed.
    pub fn hour(&mut self, hour: Hour) -> Option<&mut HourSamples> {
        if self.open.as_ref().is_none_or(|open| open.hour() != hour) {
            self.close();
            if self.is_full() {
                self.complete_until_ms = self.complete_until_ms.min(hour.start_ms());
                return None;
            }
            let offset = |ms: i64| (ms - hour.start_ms()).clamp(0, MS_PER_HOUR) as HourOffset;
            let window = offset(self.range_ms.start)..offset(self.range_ms.end);
            self.open = Some(HourSamples::first(hour, window, self.wanted.clone(), self.room));
        }
        self.open.as_mut()
    }

    /// The answer.
    #[must_use]
    pub fn finish(mut self) -> FirstReadings {
        self.close();
        FirstReadings { hours: self.hours, complete_until_ms: self.complete_until_ms }
    }

    fn is_full(&self) -> bool {
        self.room.0 == 0 || self.room.1 == 0 || self.complete_until_ms < self.range_ms.end
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let hour = open.hour();
        let (contents, until) = open.finish();
        let until_ms = hour.instant_ms(until);
        if until_ms < hour.end_ms() {
            self.complete_until_ms = self.complete_until_ms.min(until_ms);
        }
        self.room.0 -= contents.reading_count();
        self.room.1 = self.room.1.saturating_sub(contents.samples().len());
        if !contents.is_empty() {
            self.hours.push((hour, contents));
        }
    }
}
