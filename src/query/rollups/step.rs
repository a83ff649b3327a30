//! Steps of time, and the stats of hours by steps.

use std::ops::Range;

use super::merge::MetricsOfHour;
use super::{Rollups, Series};
use crate::model::{Hour, Metric, MetricTable};

/// The metrics of a device for which memory is reserved as if each hour had them.
const METRICS_OF_ALL_HOURS: usize = 8;

/// A step of a rollup: a number of hours that divides a day, so that steps begin at UTC midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step(i32);

impl Step {
    /// One hour.
    pub const HOUR: Self = Self(1);

    /// Returns a step of 1, 2, 3, 4, 6, 8, 12 or 24 hours.
    pub const fn hours(hours: u32) -> Option<Self> {
        if matches!(hours, 1 | 2 | 3 | 4 | 6 | 8 | 12 | 24) { Some(Self(hours as i32)) } else { None }
    }

    /// Returns the default range: 24 steps, or 30 days if the step is a day.
    pub const fn default_hours(self) -> u32 {
        if self.0 == 24 { 30 * 24 } else { 24 * self.0.unsigned_abs() }
    }

    /// Returns the hours of all steps that these hours touch.
    pub(super) const fn whole(self, hours: &Range<Hour>) -> Range<Hour> {
        let Self(hours_of_step) = self;
        let start = hours.start.0.div_euclid(hours_of_step) * hours_of_step;
        let end = (hours.end.0 + hours_of_step - 1).div_euclid(hours_of_step) * hours_of_step;
        Hour(start)..Hour(end)
    }

    /// Returns the start of the step that includes `hour`, in Unix milliseconds.
    pub(super) const fn start_ms(self, hour: Hour) -> i64 {
        Hour(hour.0.div_euclid(self.0) * self.0).start_ms()
    }
}

/// The hours' stats, which are ascending, by steps.
pub(in crate::query) fn step(hours: Vec<MetricsOfHour>, step: Step) -> Rollups {
    let mut places = MetricTable::default();
    let mut rollups: Vec<(Metric, Series)> = Vec::new();
    let steps = hours.len().div_ceil(step.0.unsigned_abs() as usize);
    for (hour, stats) in hours {
        let start_ms = step.start_ms(hour);
        for (metric, stats) in stats {
            let place = places.place_of(&metric) as usize;
            if place == rollups.len() {
                // As a rule, a device has the same metrics in each hour, and few of them.
                let steps = if rollups.len() < METRICS_OF_ALL_HOURS { steps } else { 0 };
                rollups.push((metric, Series::with_capacity(steps)));
            }
            let series = &mut rollups[place].1;
            match series.last_mut() {
                Some((last_ms, last)) if *last_ms == start_ms => last.append(&stats),
                _ => series.push((start_ms, stats)),
            }
        }
    }
    rollups.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_begin_at_utc_midnight_before_and_after_1970() {
        let day = Step::hours(24).unwrap();
        assert_eq!(day.start_ms(Hour(23)), 0);
        assert_eq!(day.start_ms(Hour(-1)), -24 * 3_600_000);
        assert_eq!(Step::hours(5), None);
        for (hours, whole) in [(0..24, 0..24), (1..2, 0..24), (-1..1, -24..24), (23..25, 0..48), (-24..0, -24..0)] {
            assert_eq!(day.whole(&(Hour(hours.start)..Hour(hours.end))), Hour(whole.start)..Hour(whole.end));
        }
        assert_eq!(Step::hours(0), None);
    }
}
