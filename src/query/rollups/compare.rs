//! Comparison of each step with an earlier one.
//!
//! A step is compared with the time between the same local times, some days or months earlier: with `-7d`,
//! the step from 8:00 to 9:00 is compared with 8:00 to 9:00 a week before. These earlier times follow each
//! other without gaps, so that their sums add up. If the clock skips an hour today, the step after it is
//! compared with two hours. If the clock repeats an hour today, its first occurrence is compared, and the
//! second one has nothing to compare with.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::fill::Fill;
use super::grid::{Grid, MARGIN_MS};
use super::plan::Plan;
use super::step::{MS_PER_DAY, Step, Unit};
use super::zone::Zone;
use super::{LocalTime, Rollups, Series};
use crate::common::clock::{civil_date, days_since_1970};
use crate::model::Metric;

/// How far before a step its counterpart is, by the local calendar: `-7d` is `Days(7)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Earlier {
    /// A number of days.
    Days(u16),
    /// A number of months. Only steps of months may have it: a day such as the 31st has no counterpart in a
    /// shorter month.
    Months(u16),
}

/// The most days: a hundred years.
const MAX_DAYS: u16 = 36_525;

/// Why a text is no [`Earlier`], or does not suit a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EarlierError {
    /// The text has another form.
    #[error("expected days, weeks, months or years earlier, such as -1d, -7d, -4w, -1mo or -1y")]
    Form,
    /// The time is more than a hundred years.
    #[error("at most 100 years")]
    TooLong,
    /// The step cannot be compared with days earlier.
    #[error("steps of months are compared with months or years earlier, such as -1mo or -1y")]
    Months,
    /// The step cannot be compared with months earlier.
    #[error("{0} is no step of months, so compare it with days or weeks earlier, such as -28d")]
    Days(Step),
}

impl FromStr for Earlier {
    type Err = EarlierError;

    fn from_str(text: &str) -> Result<Self, EarlierError> {
        let length = text.strip_prefix('-').ok_or(EarlierError::Form)?;
        let unit = length.find(|letter: char| !letter.is_ascii_digit()).ok_or(EarlierError::Form)?;
        let (number, unit) = length.split_at(unit);
        let (of, factor): (fn(u16) -> Self, u16) = match unit {
            "d" => (Self::Days, 1),
            "w" => (Self::Days, 7),
            "mo" => (Self::Months, 1),
            "y" => (Self::Months, 12),
            _ => return Err(EarlierError::Form),
        };
        if number.is_empty() || number.bytes().all(|digit| digit == b'0') {
            return Err(EarlierError::Form);
        }
        let number = number.parse::<u16>().ok().and_then(|number| number.checked_mul(factor));
        let earlier = of(number.ok_or(EarlierError::TooLong)?);
        let days = match earlier {
            Self::Days(days) => u32::from(days),
            Self::Months(months) => u32::from(months) * 30,
        };
        if days <= MAX_DAYS.into() { Ok(earlier) } else { Err(EarlierError::TooLong) }
    }
}

impl Earlier {
    /// Checks that each step has a counterpart at the earlier time.
    ///
    /// # Errors
    /// If steps of months are to be compared with days earlier, or others with months.
    pub const fn check(self, step: Step) -> Result<(), EarlierError> {
        match (self, step.unit) {
            (Self::Days(_), Unit::Months(_)) => Err(EarlierError::Months),
            (Self::Months(_), Unit::Minutes(_) | Unit::Hours(_) | Unit::Day | Unit::Week) => {
                Err(EarlierError::Days(step))
            }
            _ => Ok(()),
        }
    }

    /// Returns the local time that is this much earlier. Steps of months start on a day that each month has.
    pub(super) fn before(self, local_ms: i64) -> i64 {
        match self {
            Self::Days(days) => local_ms - i64::from(days) * MS_PER_DAY,
            Self::Months(months) => {
                let (day, of_day) = (local_ms.div_euclid(MS_PER_DAY), local_ms.rem_euclid(MS_PER_DAY));
                let (year, month, day) = civil_date(day as i32);
                let month = year * 12 + month - 1 - i32::from(months);
                let day = days_since_1970(month.div_euclid(12), month.rem_euclid(12) + 1, day);
                i64::from(day) * MS_PER_DAY + of_day
            }
        }
    }

    /// Returns the local time of `zone` for the earlier counterpart of the range of `grid`, with a margin.
    fn local_time(self, zone: &Zone, grid: &Grid) -> LocalTime {
        let range_ms = grid.range_ms();
        zone.local_time(self.before(range_ms.start) - MARGIN_MS..self.before(range_ms.end) + MARGIN_MS)
    }
}

/// The earlier time that each step of a grid is compared with.
#[derive(Debug)]
pub(super) struct Alignment {
    /// The start of each step's earlier time, and the end of the last one, ascending. If a step and the next
    /// one have the same start here, the step has nothing to compare with.
    starts: Vec<i64>,
    /// The earlier steps. `None`: no step has anything to compare with.
    pub(super) grid: Option<Grid>,
}

impl Alignment {
    pub(super) fn new(grid: &Grid, zone: &Zone, earlier: Earlier) -> Self {
        let local = earlier.local_time(zone, grid);
        let start_of = |bound: &i64| local.first_instant(earlier.before(grid.local_time().shown_before(*bound)));
        let starts: Vec<i64> = grid.bounds().iter().map(start_of).collect();
        debug_assert!(starts.is_sorted());
        let grid = Grid::of_bounds(starts.clone(), local);
        Self { starts, grid }
    }

    /// Returns the index of the step whose earlier time includes `start_ms`.
    fn step_of(&self, start_ms: i64) -> usize {
        self.starts.partition_point(|start| *start <= start_ms) - 1
    }
}

/// Rollups, and beside them the rollups of the earlier steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The rollups of the requested range.
    pub now: Rollups,
    /// The rollups of the earlier steps, with the same series and as many points. `None`: the request does
    /// not compare.
    pub earlier: Option<Rollups>,
}

impl From<Rollups> for Compared {
    fn from(now: Rollups) -> Self {
        Self { now, earlier: None }
    }
}

impl Compared {
    /// Puts the rollups of the earlier steps beside those of the steps of `plan`.
    pub(super) fn new(mut now: Rollups, mut earlier: Rollups, alignment: &Alignment, plan: &Plan) -> Self {
        let starts = plan.grid.starts();
        for point in earlier.values_mut().flatten() {
            point.start_ms = starts[alignment.step_of(point.start_ms)];
        }
        for metric in now.keys().chain(earlier.keys()).cloned().collect::<BTreeSet<_>>() {
            let sides = [now.entry(metric.clone()).or_default(), earlier.entry(metric).or_default()];
            let steps = sides.iter().flat_map(|side| side.iter()).map(|point| point.start_ms);
            let (fill, steps) = match plan.fill {
                Fill::None => {
                    let mut steps: Vec<i64> = steps.collect();
                    steps.sort_unstable();
                    steps.dedup();
                    (Fill::Null, steps)
                }
                fill => (fill, starts.to_vec()),
            };
            for side in sides {
                fill.apply(side, &steps);
            }
        }
        for point in earlier.values_mut().flatten() {
            let step = starts.partition_point(|start| *start < point.start_ms);
            point.start_ms = alignment.starts[step];
        }
        Self { now, earlier: Some(earlier) }
    }

    /// Returns the number of rows of a table. An earlier point is in the row of its counterpart.
    #[must_use]
    pub fn points(&self) -> usize {
        self.now.values().map(Vec::len).sum()
    }

    /// Returns each series with its earlier points.
    pub fn series(&self) -> impl Iterator<Item = (&Metric, &Series, Option<&Series>)> {
        self.now
            .iter()
            .map(|(metric, series)| (metric, series, self.earlier.as_ref().and_then(|earlier| earlier.get(metric))))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::super::zone::tests::zone;
    use super::*;
    use crate::model::MS_PER_HOUR;

    #[test]
    fn a_time_earlier_has_days_weeks_months_or_years() {
        for (text, earlier) in [
            ("-1d", Earlier::Days(1)),
            ("-7d", Earlier::Days(7)),
            ("-4w", Earlier::Days(28)),
            ("-1mo", Earlier::Months(1)),
            ("-2y", Earlier::Months(24)),
            ("-100y", Earlier::Months(1_200)),
        ] {
            assert_eq!(text.parse(), Ok(earlier), "{text}");
        }
        for text in ["", "-", "7d", "+7d", "-d", "-0d", "-7", "-7h", "-1.5d", "-7 d", "-7D", "-1d1h", "--1d", "-３d"] {
            assert_eq!(text.parse::<Earlier>(), Err(EarlierError::Form), "{text}");
        }
        for text in ["-36526d", "-9999w", "-1218mo", "-9999y", "-99999999999999999999d"] {
            assert_eq!(text.parse::<Earlier>(), Err(EarlierError::TooLong), "{text}");
        }
        let check = |earlier: Earlier, step: &str| earlier.check(step.parse().unwrap()).map_err(|why| why.to_string());
        assert_eq!(check(Earlier::Days(7), "1w"), Ok(()));
        assert_eq!(check(Earlier::Months(1), "3mo"), Ok(()));
        assert!(check(Earlier::Days(28), "1mo").unwrap_err().starts_with("steps of months are compared with months"));
        assert!(check(Earlier::Months(1), "1d").unwrap_err().starts_with("1d is no step of months"));
    }

    fn ms(text: &str) -> i64 {
        text.parse::<Timestamp>().expect(text).as_millisecond()
    }

    /// The start of each step and of its compared time, both in UTC, and the length of this time.
    fn aligned(of: &str, step: &str, earlier: &str, from: &str, to: &str) -> Vec<String> {
        let (zone, earlier) = (zone(of), earlier.parse().unwrap());
        let grid = Grid::new(step.parse().unwrap(), &zone, &(ms(from)..ms(to)));
        let found = Alignment::new(&grid, &zone, earlier);
        let text = |ts_ms| Timestamp::from_millisecond(ts_ms).unwrap().strftime("%d %H:%M").to_string();
        let pair = |(at, start_ms)| {
            let times = &found.starts[at..at + 2];
            format!("{} {} {}h", text(start_ms), text(times[0]), (times[1] - times[0]) as f64 / MS_PER_HOUR as f64)
        };
        grid.starts().iter().copied().enumerate().map(pair).collect()
    }

    #[test]
    fn hours_have_the_same_local_time_on_days_of_a_change() {
        // Clocks in Berlin are set forward at 2024-03-31T01:00Z, and back at 2024-10-27T01:00Z.
        let berlin = |from, to| aligned("Europe/Berlin", "1h", "-1d", from, to);
        assert_eq!(
            berlin("2024-03-31T00:00:00Z", "2024-03-31T03:00:00Z"),
            ["31 00:00 30 00:00 1h", "31 01:00 30 01:00 2h", "31 02:00 30 03:00 1h"],
            "the clock skips two o'clock"
        );
        assert_eq!(
            berlin("2024-03-31T23:00:00Z", "2024-04-01T02:00:00Z"),
            ["31 23:00 31 00:00 1h", "01 00:00 31 01:00 0h", "01 01:00 31 01:00 1h"],
            "the day before has no two o'clock"
        );
        assert_eq!(
            berlin("2024-10-27T00:00:00Z", "2024-10-27T03:00:00Z"),
            ["27 00:00 26 00:00 1h", "27 01:00 26 01:00 0h", "27 02:00 26 01:00 1h"],
            "the clock repeats two o'clock"
        );
        assert_eq!(
            berlin("2024-10-28T00:00:00Z", "2024-10-28T03:00:00Z"),
            ["28 00:00 26 23:00 1h", "28 01:00 27 00:00 2h", "28 02:00 27 02:00 1h"],
            "the day before has two o'clock twice"
        );
        let only_repeated = aligned("Europe/Berlin", "1h", "-1d", "2024-10-27T01:10:00Z", "2024-10-27T01:20:00Z");
        assert_eq!(only_repeated, ["27 01:00 26 01:00 0h"]);
        let howe = |from, to| aligned("Australia/Lord_Howe", "1h", "-7d", from, to);
        assert_eq!(
            howe("2024-10-05T14:30:00Z", "2024-10-05T17:00:00Z"),
            ["05 14:30 28 14:30 1h", "05 15:30 28 15:30 1h", "05 16:00 28 16:30 1h"],
            "half of two o'clock is skipped"
        );
    }

    #[test]
    fn days_and_months_are_compared_as_a_whole() {
        let days = aligned("Europe/Berlin", "1d", "-7d", "2024-04-05T22:00:00Z", "2024-04-07T22:00:00Z");
        assert_eq!(days, ["05 22:00 29 23:00 24h", "06 22:00 30 23:00 23h"]);
        let day = aligned("America/Asuncion", "1d", "-7d", "2023-10-01T04:00:00Z", "2023-10-02T03:00:00Z");
        assert_eq!(day, ["01 04:00 24 04:00 24h"], "a day without its midnight");
        let months = aligned("Europe/Berlin", "1mo", "-1mo", "2024-03-05T00:00:00Z", "2024-04-05T00:00:00Z");
        assert_eq!(months, ["29 23:00 31 23:00 696h", "31 22:00 29 23:00 743h"]);
        let years = aligned("UTC", "1y", "-1y", "2024-03-05T00:00:00Z", "2024-04-05T00:00:00Z");
        assert_eq!(years, ["01 00:00 01 00:00 8760h"]);
    }

    proptest! {
        /// The model reads a clock every quarter of an hour.
        #[test]
        fn compared_times_are_those_of_a_clock(
            name in prop::sample::select(vec![
                "UTC", "Europe/Berlin", "Asia/Kathmandu", "America/New_York", "Australia/Lord_Howe", "America/Havana",
            ]),
            step in prop::sample::select(vec!["15m", "30m", "1h", "2h", "6h", "1d", "1w"]),
            offset in prop_oneof![Just(0), 0..672_i64],
            days in prop_oneof![Just(1_u16), Just(7), 1..200_u16],
            start_days in 17_000..20_000_i64,
            quarters in 1..500_i64,
        ) {
            const QUARTER: i64 = 900_000;
            let step: Step = step.parse().unwrap();
            let step = step.beginning_later(offset % (step.usual_ms() / QUARTER) * QUARTER).unwrap();
            let from = start_days * MS_PER_DAY;
            let zone = zone(name);
            let grid = Grid::new(step, &zone, &(from..from + quarters * QUARTER));
            let found = Alignment::new(&grid, &zone, Earlier::Days(days));
            let (range, shift) = (grid.range_ms(), i64::from(days) * MS_PER_DAY);
            let local = zone.local_time(range.start - 300 * MS_PER_DAY..range.end + 9 * MS_PER_DAY);
            let shown = |ts: i64| ts + local.offset_ms_at(ts);
            // The latest time that the clock has shown before each step.
            let mut before = Vec::new();
            let mut latest = i64::MIN;
            for ts in (range.start - 2 * MS_PER_DAY..=range.end).step_by(QUARTER as usize) {
                if grid.bounds().binary_search(&ts).is_ok() {
                    before.push(latest);
                }
                latest = latest.max(shown(ts) + QUARTER);
            }
            prop_assert_eq!(before.len(), grid.bounds().len());
            let mut latest = i64::MIN;
            for ts in (range.start - shift - 2 * MS_PER_DAY..range.end - shift + MS_PER_DAY).step_by(QUARTER as usize) {
                latest = latest.max(shown(ts));
                let expected = before.iter().rposition(|before| before - shift <= latest);
                let step = found.starts.iter().rposition(|start| *start <= ts);
                prop_assert_eq!(step, expected, "at {}", ts);
            }
        }
    }
}
