//! The steps of a range: where each begins.
//!
//! Steps follow the local clock. A step of several hours, a day, a week, or a number of months begins at the
//! first instant at which the local clock shows its start or a later time. So a day on which the clock
//! changes has 23 or 25 hours, and a step of several hours that includes the change is shorter or longer than
//! others. A step that the clock skips as a whole does not exist.
//!
//! A step of an hour or less begins whenever the local clock shows a multiple of it. If the clock is set back
//! and shows a multiple again, another step begins. So an hour that the clock repeats is a step of its own.
//! If the clock skips a multiple, a step begins after the gap.
//!
//! With an offset of six hours, each step begins six hours later by the local clock. So the steps are those
//! of a clock that is six hours behind.

use std::ops::Range;

use super::step::{MS_PER_DAY, Step, Unit};
use super::zone::{LocalTime, Zone};
use crate::common::clock::{civil_date, days_since_1970};
use crate::model::{Hour, MS_PER_HOUR};

/// The most by which a step exceeds its usual length, such as a month of 31 days.
pub(super) const MARGIN_MS: i64 = 4 * MS_PER_DAY;

/// How far around a range the bounds of steps of an hour or less are computed. No clock is set back by more
/// than this at once. When a clock is set back, such steps begin anew.
const LONGEST_FINE_MS: i64 = 5 * MS_PER_HOUR;

/// Any two changes of a clock are further apart than this.
const SHORTEST_PERIOD_MS: i64 = 7 * MS_PER_DAY;

/// The steps that a range touches.
#[derive(Debug, Clone)]
pub(in crate::query) struct Grid {
    /// The start of each step, and the end of the last one, in Unix milliseconds. Strictly ascending, at
    /// least two.
    bounds: Vec<i64>,
    local: LocalTime,
}

impl Grid {
    /// Returns the steps that a range of instants touches, which must not be empty.
    pub(in crate::query) fn new(step: Step, zone: &Zone, range_ms: &Range<i64>) -> Self {
        let around = 2 * step.usual_ms() + MARGIN_MS;
        let local = zone.local_time(range_ms.start - around..range_ms.end + around);
        let clock = local.behind(step.offset_ms);
        let bounds = match step.unit {
            Unit::Minutes(_) | Unit::Hours(1) => fine_bounds(step.usual_ms(), &clock, range_ms),
            Unit::Hours(_) | Unit::Day | Unit::Week | Unit::Months(_) => coarse_bounds(step.unit, &clock, range_ms),
        };
        Self { bounds, local }
    }

    /// Returns the steps between `bounds`, which ascend and may repeat. `None`: there are no steps.
    pub(super) fn of_bounds(mut bounds: Vec<i64>, local: LocalTime) -> Option<Self> {
        bounds.dedup();
        (bounds.len() > 1).then_some(Self { bounds, local })
    }

    /// Returns an upper bound of the number of steps, without making them. It holds for steps of at most an
    /// hour. Each change of the clock makes one step more at most.
    pub(super) const fn most_steps(step: Step, range_ms: &Range<i64>) -> i64 {
        let ms = range_ms.end - range_ms.start;
        ms / step.usual_ms() + ms / SHORTEST_PERIOD_MS + 4
    }

    /// The starts of the steps.
    pub(in crate::query) fn starts(&self) -> &[i64] {
        &self.bounds[..self.bounds.len() - 1]
    }

    /// The start of each step, and the end of the last one.
    pub(super) fn bounds(&self) -> &[i64] {
        &self.bounds
    }

    /// The instants of all steps.
    pub(super) fn range_ms(&self) -> Range<i64> {
        self.bounds[0]..self.bounds[self.bounds.len() - 1]
    }

    /// The hours that the steps touch.
    pub(super) fn hours(&self) -> Range<Hour> {
        let range_ms = self.range_ms();
        Hour::of(range_ms.start)..Hour::at_or_after(range_ms.end)
    }

    /// The bounds of steps inside of an hour, ascending. The start of the hour is not inside.
    pub(super) fn cuts_of(&self, hour: Hour) -> &[i64] {
        let start = self.bounds.partition_point(|bound| *bound <= hour.start_ms());
        let end = self.bounds.partition_point(|bound| *bound < hour.end_ms());
        &self.bounds[start.min(end)..end]
    }

    /// Whether steps begin or end inside of hours.
    pub(super) fn has_cuts(&self) -> bool {
        self.bounds.iter().any(|bound| bound.rem_euclid(MS_PER_HOUR) != 0)
    }

    /// The local time of the steps.
    pub(super) const fn local_time(&self) -> &LocalTime {
        &self.local
    }
}

/// Finds the step of each instant. The instants have to ascend.
#[derive(Debug)]
pub(super) struct Walk<'g> {
    bounds: &'g [i64],
    at: usize,
}

impl<'g> Walk<'g> {
    pub(super) const fn new(grid: &'g Grid) -> Self {
        Self { bounds: grid.bounds.as_slice(), at: 0 }
    }

    /// Returns the start of the step that includes `ts_ms`; `None` if no step does. The instants of
    /// successive calls ascend.
    pub(super) fn start_of(&mut self, ts_ms: i64) -> Option<i64> {
        loop {
            let (start, end) = (*self.bounds.get(self.at)?, *self.bounds.get(self.at + 1)?);
            if ts_ms < end {
                return (start <= ts_ms).then_some(start);
            }
            self.at += 1;
        }
    }
}

/// The bounds of steps of at most an hour: the multiples of the step by the local clock.
fn fine_bounds(step_ms: i64, local: &LocalTime, range_ms: &Range<i64>) -> Vec<i64> {
    let within = range_ms.start - LONGEST_FINE_MS..range_ms.end + LONGEST_FINE_MS;
    let mut bounds: Vec<i64> = Vec::new();
    let mut offset_before = None;
    for (start_ms, end_ms, offset_ms) in local.periods() {
        let skips = offset_before.replace(offset_ms).is_some_and(|before| {
            (start_ms + before - 1).div_euclid(step_ms) < (start_ms + offset_ms).div_euclid(step_ms)
        });
        if skips && within.contains(&start_ms) && bounds.last() != Some(&start_ms) {
            bounds.push(start_ms); // where the clock skips a multiple, or shows one
        }
        let first = (start_ms.max(within.start) + offset_ms + step_ms - 1).div_euclid(step_ms) * step_ms - offset_ms;
        let mut bound = first;
        while bound < end_ms.min(within.end) {
            if bounds.last().is_none_or(|last| *last < bound) {
                bounds.push(bound);
            }
            bound += step_ms;
        }
    }
    around(&bounds, range_ms)
}

/// Returns the bounds of the steps that a range touches.
fn around(bounds: &[i64], range_ms: &Range<i64>) -> Vec<i64> {
    let first = bounds.partition_point(|bound| *bound <= range_ms.start).saturating_sub(1);
    let last = bounds.partition_point(|bound| *bound < range_ms.end).min(bounds.len() - 1);
    bounds[first..=last].to_vec()
}

/// Returns the bounds of steps of more than an hour.
fn coarse_bounds(unit: Unit, local: &LocalTime, range_ms: &Range<i64>) -> Vec<i64> {
    let start_of = |nth| local.first_instant(local_start(unit, nth));
    let mut nth = nth_of(unit, range_ms.start + local.offset_ms_at(range_ms.start));
    while start_of(nth + 1) <= range_ms.start {
        nth += 1; // the clock was set back
    }
    while start_of(nth) > range_ms.start {
        nth -= 1;
    }
    let mut bounds = vec![start_of(nth)];
    let mut last = bounds[0];
    while last < range_ms.end {
        nth += 1;
        let bound = start_of(nth);
        if bound > last {
            bounds.push(bound);
            last = bound;
        }
    }
    bounds
}

/// The number of the step that includes a local time, counted from 1970.
fn nth_of(unit: Unit, local_ms: i64) -> i64 {
    let day = local_ms.div_euclid(MS_PER_DAY);
    match unit {
        Unit::Minutes(_) | Unit::Hours(_) => local_ms.div_euclid(unit.usual_ms()),
        Unit::Day => day,
        Unit::Week => (day + 3).div_euclid(7), // 1970-01-01 was a Thursday
        Unit::Months(months) => {
            let (year, month, _) = civil_date(day as i32);
            (i64::from(year) * 12 + i64::from(month) - 1).div_euclid(months.into())
        }
    }
}

/// The local time at which a step begins.
fn local_start(unit: Unit, nth: i64) -> i64 {
    let day = match unit {
        Unit::Minutes(_) | Unit::Hours(_) => return nth * unit.usual_ms(),
        Unit::Day => nth,
        Unit::Week => nth * 7 - 3,
        Unit::Months(months) => {
            let month = nth * i64::from(months);
            i64::from(days_since_1970(month.div_euclid(12) as i32, month.rem_euclid(12) as i32 + 1, 1))
        }
    };
    day * MS_PER_DAY
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::super::zone::tests::zone;
    use super::*;

    fn ms(text: &str) -> i64 {
        text.parse::<Timestamp>().expect(text).as_millisecond()
    }

    /// The starts of the steps of a range, and the hours of each.
    fn steps(step: &str, of: &str, from: &str, to: &str) -> Vec<(String, f64)> {
        let grid = Grid::new(step.parse().unwrap(), &zone(of), &(ms(from)..ms(to)));
        let text = |ts_ms| Timestamp::from_millisecond(ts_ms).unwrap().strftime("%d %H:%M").to_string();
        grid.bounds.windows(2).map(|pair| (text(pair[0]), (pair[1] - pair[0]) as f64 / 3.6e6)).collect()
    }

    fn hours(step: &str, of: &str, from: &str, to: &str) -> Vec<f64> {
        steps(step, of, from, to).into_iter().map(|(_, hours)| hours).collect()
    }

    #[test]
    fn a_range_is_widened_to_whole_steps() {
        for (from, to, start, end) in [
            ("2026-04-20T14:30:00Z", "2026-04-20T14:30:00.001Z", "2026-04-20T00:00:00Z", "2026-04-21T00:00:00Z"),
            ("2026-04-20T00:00:00Z", "2026-04-21T00:00:00Z", "2026-04-20T00:00:00Z", "2026-04-21T00:00:00Z"),
            ("1969-12-31T23:59:59Z", "1970-01-01T00:00:01Z", "1969-12-31T00:00:00Z", "1970-01-02T00:00:00Z"),
        ] {
            let grid = Grid::new("1d".parse().unwrap(), &Zone::UTC, &(ms(from)..ms(to)));
            assert_eq!(grid.range_ms(), ms(start)..ms(end));
        }
    }

    #[test]
    fn days_of_a_change_have_23_and_25_hours_or_half_an_hour_less_and_more() {
        let day = |zone, from, to| hours("1d", zone, from, to);
        assert_eq!(day("Europe/Berlin", "2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z"), [23.0]);
        assert_eq!(day("Europe/Berlin", "2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z"), [25.0]);
        assert_eq!(day("Australia/Lord_Howe", "2024-10-05T13:30:00Z", "2024-10-06T13:00:00Z"), [23.5]);
        assert_eq!(day("Australia/Lord_Howe", "2024-04-06T13:00:00Z", "2024-04-07T13:30:00Z"), [24.5]);
        assert_eq!(day("Pacific/Apia", "2011-12-29T12:00:00Z", "2011-12-31T09:00:00Z"), [24.0, 24.0], "one is skipped");
        assert_eq!(steps("1d", "Asia/Kathmandu", "2024-01-01T12:00:00Z", "2024-01-01T13:00:00Z")[0].0, "31 18:15");
    }

    #[test]
    fn hours_follow_the_local_clock() {
        let berlin = |step, from, to| hours(step, "Europe/Berlin", from, to);
        assert_eq!(berlin("1h", "2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z"), vec![1.0; 23]);
        assert_eq!(berlin("1h", "2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z"), vec![1.0; 25]);
        assert_eq!(berlin("6h", "2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z"), [5.0, 6.0, 6.0, 6.0]);
        assert_eq!(berlin("6h", "2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z"), [7.0, 6.0, 6.0, 6.0]);
        assert_eq!(berlin("2h", "2024-03-31T00:30:00Z", "2024-03-31T02:30:00Z"), [2.0, 1.0, 2.0]);
        assert_eq!(berlin("2h", "2024-10-27T00:00:00Z", "2024-10-27T04:00:00Z"), [3.0, 2.0]);

        let howe = |from, to| steps("1h", "Australia/Lord_Howe", from, to);
        let of = |starts: [(&str, f64); 3]| starts.map(|(start, hours)| (start.to_owned(), hours));
        let set_back = of([("06 14:00", 1.5), ("06 15:30", 1.0), ("06 16:30", 1.0)]);
        assert_eq!(howe("2024-04-06T14:30:00Z", "2024-04-06T17:00:00Z"), set_back);
        let skipped = of([("05 14:30", 1.0), ("05 15:30", 0.5), ("05 16:00", 1.0)]);
        assert_eq!(howe("2024-10-05T15:00:00Z", "2024-10-05T16:30:00Z"), skipped);
    }

    #[test]
    fn shifts_begin_at_the_same_hours_by_the_local_clock_on_every_day() {
        let shifts = |zone_name: &str, step: &str, offset: i64, from, to| {
            let step = step.parse::<Step>().unwrap().beginning_later(offset * MS_PER_HOUR / 60).unwrap();
            let grid = Grid::new(step, &zone(zone_name), &(ms(from)..ms(to)));
            let local = |ts_ms| ts_ms + grid.local.offset_ms_at(ts_ms);
            let text = |ts_ms| Timestamp::from_millisecond(local(ts_ms)).unwrap().strftime("%H:%M").to_string();
            let shift = |pair: &[i64]| format!("{} {}h", text(pair[0]), (pair[1] - pair[0]) as f64 / 3.6e6);
            grid.bounds.windows(2).map(shift).collect::<Vec<_>>()
        };
        let berlin = |from, to| shifts("Europe/Berlin", "8h", 360, from, to);
        let (early, late, night) = ("06:00 8h", "14:00 8h", "22:00 8h");
        assert_eq!(berlin("2024-01-10T05:00:00Z", "2024-01-11T05:00:00Z"), [early, late, night]);
        assert_eq!(berlin("2024-03-30T05:00:00Z", "2024-03-31T05:00:00Z"), [early, late, "22:00 7h", early]);
        assert_eq!(berlin("2024-10-26T04:00:00Z", "2024-10-27T05:00:00Z"), [early, late, "22:00 9h"]);
        let howe = shifts("Australia/Lord_Howe", "8h", 360, "2024-04-06T11:00:00Z", "2024-04-06T19:30:00Z");
        assert_eq!(howe, ["22:00 8.5h"]);
        let berlin = |step, offset, from, to| shifts("Europe/Berlin", step, offset, from, to);
        assert_eq!(berlin("1d", 360, "2024-03-30T05:00:00Z", "2024-03-31T04:00:00Z"), ["06:00 23h"]);
        assert_eq!(berlin("12h", 390, "2024-01-10T05:30:00Z", "2024-01-11T05:30:00Z"), ["06:30 12h", "18:30 12h"]);
        let sunday = berlin("1w", 6 * 1_440 + 22 * 60, "2024-03-24T21:00:00Z", "2024-03-31T20:00:00Z");
        assert_eq!(sunday, ["22:00 167h"], "from Sunday evening on");
        assert_eq!(berlin("1h", 30, "2024-01-10T05:30:00Z", "2024-01-10T06:30:00Z"), ["06:30 1h"]);
        assert_eq!(berlin("1mo", 360, "2024-02-01T05:00:00Z", "2024-03-01T05:00:00Z"), ["06:00 696h"]);
    }

    #[test]
    fn weeks_begin_on_monday_and_months_on_the_first() {
        assert_eq!(hours("1w", "UTC", "2024-04-21T23:00:00Z", "2024-04-22T01:00:00Z"), [168.0, 168.0]);
        assert_eq!(steps("1w", "UTC", "1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z")[0].0, "29 00:00");
        let days = |step, from, to| hours(step, "America/New_York", from, to);
        assert_eq!(days("1mo", "2024-02-02T00:00:00Z", "2024-03-31T00:00:00Z"), [29.0 * 24.0, 31.0 * 24.0 - 1.0]);
        assert_eq!(days("3mo", "2023-10-02T00:00:00Z", "2023-10-03T00:00:00Z"), [92.0 * 24.0 + 1.0]);
        assert_eq!(days("1y", "2023-10-02T00:00:00Z", "2024-10-03T00:00:00Z"), [365.0 * 24.0, 366.0 * 24.0]);
    }

    #[test]
    fn instants_are_found_in_their_steps() {
        let grid = Grid::new(Step::HOUR, &zone("Asia/Kathmandu"), &(0..MS_PER_HOUR));
        let (half, hour) = (MS_PER_HOUR / 2, MS_PER_HOUR);
        assert_eq!(grid.bounds, [-half, half, hour + half]);
        let mut walk = Walk::new(&grid);
        let found =
            [-hour, -half - 1, -half, 0, half - 1, half, hour, hour + half, 9 * hour].map(|ts| walk.start_of(ts));
        let (a, b) = (Some(-half), Some(half));
        assert_eq!(found, [None, None, a, a, a, b, b, None, None]);
        assert_eq!((grid.hours(), grid.has_cuts()), (Hour(-1)..Hour(2), true));
        assert_eq!(
            (grid.cuts_of(Hour(-1)), grid.cuts_of(Hour(0)), grid.cuts_of(Hour(1))),
            (&[-half][..], &[half][..], &[hour + half][..])
        );
        assert!(Grid::new(Step::HOUR, &Zone::UTC, &(0..1)).cuts_of(Hour(0)).is_empty());
    }

    proptest! {
        /// The model reads a clock every quarter of an hour.
        #[test]
        fn steps_are_those_of_a_clock(
            name in prop::sample::select(vec![
                "UTC", "Europe/Berlin", "Asia/Kathmandu", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia",
                "America/Sao_Paulo", "Africa/Casablanca", "America/Havana",
            ]),
            step in prop::sample::select(vec!["15m", "30m", "1h", "2h", "6h", "12h", "1d", "1w", "1mo", "3mo"]),
            offset in prop_oneof![Just(0), 0..2_688_i64],
            start_days in 10_000..20_000_i64,
            quarters in 1..3_000_i64,
        ) {
            const QUARTER: i64 = 900_000;
            let step: Step = step.parse().unwrap();
            let offset = offset % (step.usual_ms() / QUARTER) * QUARTER;
            let step = step.beginning_later(offset).unwrap();
            let from = start_days * MS_PER_DAY + quarters % 96 * QUARTER;
            let grid = Grid::new(step, &zone(name), &(from..from + quarters * QUARTER));
            let most = Grid::most_steps(step, &(from..from + quarters * QUARTER));
            prop_assert!(step.usual_ms() > MS_PER_HOUR || grid.starts().len() as i64 <= most);
            prop_assert!(grid.bounds.is_sorted_by(|a, b| a < b));
            let (starts, range) = (grid.starts(), grid.range_ms());
            prop_assert!(starts[0] <= from && starts.get(1).is_none_or(|next| *next > from));
            let to = from + quarters * QUARTER;
            prop_assert!(range.end >= to && starts[starts.len() - 1] < to);
            // A step begins where its number by the clock grows. A step of an hour or less also begins where
            // the clock shows a multiple of it again.
            let before = zone(name).local_time(range.start - 100 * MS_PER_DAY..range.end + 100 * MS_PER_DAY);
            let is_fine = step.usual_ms() <= MS_PER_HOUR;
            let (mut latest, mut last_nth, mut last) = (i64::MIN, None, i64::MIN);
            let mut expected = Vec::new();
            for ts in (range.start - 2 * MS_PER_DAY..=range.end).step_by(QUARTER as usize) {
                let shown = ts + before.offset_ms_at(ts) - offset;
                latest = latest.max(shown);
                let nth = nth_of(step.unit, if is_fine { shown } else { latest });
                let shows_multiple = is_fine && shown % step.usual_ms() == 0 && shown != last;
                if shows_multiple || last_nth.is_some_and(|last| nth > last) {
                    expected.push(ts);
                }
                (last_nth, last) = (Some(nth), shown);
            }
            expected.retain(|ts| range.start <= *ts && *ts <= range.end);
            prop_assert_eq!(&grid.bounds, &expected);
        }
    }
}
