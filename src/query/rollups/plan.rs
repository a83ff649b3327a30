//! The plan of a query for rollups: its steps, and the data that they need.

use std::ops::Range;

use super::compare::{Alignment, Earlier};
use super::grid::MARGIN_MS;
use super::increase::{LOOK_BACK_MS, growth_of};
use super::{
    Column, Columns, Fill, Grid, HOURS_PER_REQUEST, REQUESTS_AT_ONCE, Rollups, RollupsRequest, STATS_AT_ONCE,
    STATS_PER_REQUEST, Step,
};
use crate::model::{Day, Hour, MS_PER_HOUR, Metric, SeriesFilter};
use crate::query::devices::most_series;
use crate::query::{Limits, QueryError};
use crate::store::HourStats;

/// The steps of a query, and what it needs for them.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) grid: Grid,
    pub(super) step: Step,
    pub(super) series: SeriesFilter,
    pub(super) columns: Columns,
    pub(super) fill: Fill,
    /// The hours to read: those of the steps.
    ///
    /// For increases, also those of [`LOOK_BACK_MS`] before them, which may have the last value before a
    /// step.
    pub(super) hours: Range<Hour>,
    /// Whether stats alone may not suffice, so that some hours need readings.
    pub(super) reads: bool,
}

impl Plan {
    /// Plans a query. If the request compares, its two ranges share the limits.
    pub(super) fn new(request: &RollupsRequest, limits: &Limits) -> Result<Self, QueryError> {
        let RollupsRequest { to_ms, step, .. } = *request;
        let ranges = if request.compare.is_some() { 2 } else { 1 };
        let max_hours = limits.max_hours / ranges;
        let from_ms = request.from_ms.unwrap_or_else(|| {
            let longest_ms = i64::from(max_hours.saturating_sub(1).max(1)) * MS_PER_HOUR;
            to_ms - step.default_range_ms().min(longest_ms)
        });
        limits.check_ranges(from_ms, to_ms, ranges)?;
        // Steps of an hour or more are limited by the number of hours already.
        let most = limits.max_points.max(limits.max_hours as usize) / ranges as usize;
        let steps = Grid::most_steps(step, &(from_ms..to_ms)) as usize;
        if step.usual_ms() < MS_PER_HOUR && steps > most {
            let step = step.to_string();
            let fits = (most as u64).saturating_mul((to_ms - from_ms).unsigned_abs() / MS_PER_HOUR.unsigned_abs());
            let hours = fits / steps as u64;
            return Err(QueryError::TooManySteps { max: most, found: steps, step, hours });
        }
        let grid = Grid::new(step, &request.zone, &(from_ms..to_ms));
        Ok(Self::of_grid(grid, request))
    }

    fn of_grid(grid: Grid, request: &RollupsRequest) -> Self {
        let RollupsRequest { step, columns, fill, .. } = *request;
        let counts_increase = columns.has(Column::Increase);
        let mut hours = grid.hours();
        if counts_increase {
            hours.start = Hour::of(grid.range_ms().start - LOOK_BACK_MS);
        }
        let reads = counts_increase || grid.has_cuts();
        Self { grid, step, series: request.series.clone(), columns, fill, hours, reads }
    }

    /// Returns the plan of the earlier steps that the request compares with.
    ///
    /// `None`: no step has anything to compare with.
    pub(super) fn earlier(request: &RollupsRequest, alignment: &Alignment) -> Option<Self> {
        alignment.grid.clone().map(|grid| Self::of_grid(grid, request))
    }

    /// Returns the first day with hours to read, also for the steps that the request compares with. It may be
    /// some days too early.
    pub(super) fn first_day(&self, compare: Option<Earlier>) -> Day {
        let start_ms = self.hours.start.start_ms();
        let start_ms = compare.map_or(start_ms, |earlier| earlier.before(start_ms) - MARGIN_MS);
        Day::of(Hour::of(start_ms))
    }

    pub(super) const fn counts_increase(&self) -> bool {
        self.columns.has(Column::Increase)
    }

    /// The number of hours or of steps of a device, whichever is larger.
    pub(super) fn size_of_device(&self) -> usize {
        (self.hours.end.0.abs_diff(self.hours.start.0) as usize).max(self.grid.starts().len())
    }

    /// The most stats of a device with this many series, or the most points if these are more.
    fn stats_of_device(&self, series: usize) -> usize {
        self.size_of_device().saturating_mul(series)
    }

    /// The most devices of one request to the store.
    fn most_devices(&self) -> usize {
        (HOURS_PER_REQUEST / self.size_of_device().max(1)).max(1)
    }

    /// Whether the requests to the store for so many devices have few stats at once, however many series the
    /// devices have.
    pub(super) fn has_few_stats(&self, devices: usize) -> bool {
        let at_once = devices.min(REQUESTS_AT_ONCE * self.most_devices());
        self.stats_of_device(most_series(&self.series)).saturating_mul(at_once) <= STATS_AT_ONCE
    }

    /// Divides devices into groups, each for one request to the store. `series` has the most series of each
    /// device.
    ///
    /// A device with more than [`STATS_PER_REQUEST`] stats has a group of its own, which is read in several
    /// [windows](Self::windows).
    pub(super) fn groups(&self, series: &[usize]) -> Vec<Range<usize>> {
        let most = self.most_devices();
        let (mut groups, mut first, mut stats) = (Vec::new(), 0, 0_usize);
        for (at, series) in series.iter().enumerate() {
            let more = self.stats_of_device(*series);
            if at > first && (at - first == most || stats.saturating_add(more) > STATS_PER_REQUEST) {
                groups.push(first..at);
                (first, stats) = (at, 0);
            }
            stats = stats.saturating_add(more);
        }
        if first < series.len() {
            groups.push(first..series.len());
        }
        groups
    }

    /// Divides the hours into windows, ascending. The stats of a device with this many series are at most
    /// [`STATS_PER_REQUEST`] in each of them, unless those of a single hour are more.
    pub(super) fn windows(&self, series: usize) -> Vec<Range<Hour>> {
        if self.stats_of_device(series) <= STATS_PER_REQUEST {
            return vec![self.hours.clone()];
        }
        let hours = self.hours.end.0.abs_diff(self.hours.start.0) as usize;
        let per_hour = self.size_of_device().div_ceil(hours.max(1)).saturating_mul(series);
        let most = (STATS_PER_REQUEST / per_hour).max(1) as i32;
        let (mut windows, mut start) = (Vec::new(), self.hours.start);
        while start < self.hours.end {
            // Whole days if possible: a store may keep the stats of a day together.
            let end = if most < 24 { Hour(start.0 + most) } else { Day(Day::of(start).0 + most / 24).hours().start };
            windows.push(start..end.min(self.hours.end));
            start = end;
        }
        windows
    }

    /// Returns the number of hours of the steps before the hour `until`, at least 1.
    pub(super) fn hours_until(&self, until: Hour) -> u32 {
        let hours = self.grid.hours();
        hours.start.0.abs_diff(until.min(hours.end).0.max(hours.start.0 + 1))
    }

    /// Whether the answer needs the readings of an hour. `stored` has the stored stats of the hour.
    pub(super) fn needs_readings(&self, hour: Hour, stored: Option<&HourStats>, is_pending: bool) -> bool {
        if !self.grid.cuts_of(hour).is_empty() {
            return true;
        }
        if !self.counts_increase() {
            return false;
        }
        let is_before = hour.end_ms() <= self.grid.range_ms().start;
        let is_known = |stored: &HourStats| stored.stats.iter().all(|(_, stats)| growth_of(stats).is_some());
        is_pending || !(is_before || stored.is_none_or(is_known))
    }

    /// Whether the query fails if some of its readings have expired. Steps of minutes do not need all
    /// readings: each shows those that are left.
    pub(super) fn needs_all_readings(&self) -> bool {
        self.counts_increase() || self.step.usual_ms() >= MS_PER_HOUR
    }

    /// Returns the number of points of some rollups. Fails if it exceeds `max`.
    pub(super) fn points_of<'r>(
        &self,
        rollups: impl IntoIterator<Item = &'r Rollups>,
        max: usize,
    ) -> Result<usize, QueryError> {
        let steps = self.grid.starts().len();
        let of_each = rollups.into_iter().map(|rollups| self.fill.points_of(rollups, steps));
        let found = of_each.fold(0_usize, usize::saturating_add);
        if found <= max { Ok(found) } else { Err(self.too_many_points(max, found)) }
    }

    /// Returns an upper bound of the points of rollups and of the earlier ones.
    ///
    /// After the comparison, both have a point in each step in which one of them has readings, and with
    /// `fill` in every step.
    pub(super) fn points_beside(&self, now: &Rollups, earlier: &Rollups) -> usize {
        let steps = self.grid.starts().len();
        let of = |rollups: &Rollups, metric: &Metric| rollups.get(metric).map_or(0, Vec::len);
        let of_series = |metric: &Metric| match self.fill {
            Fill::None => (of(now, metric) + of(earlier, metric)).min(steps),
            Fill::Null | Fill::Previous => steps,
        };
        let series = now.keys().chain(earlier.keys().filter(|metric| !now.contains_key(*metric)));
        series.map(of_series).fold(0_usize, usize::saturating_add).saturating_mul(2)
    }

    /// Fails if a device has more than `max` points. So far it has `found`, of the hours before `until`.
    pub(super) fn check_points(&self, max: usize, found: usize, until: Hour) -> Result<(), QueryError> {
        if found <= max {
            return Ok(());
        }
        let share = f64::from(self.hours_until(until)) / f64::from(self.hours_until(self.hours.end));
        Err(self.too_many_points_of(max, found, (found as f64 / share) as usize))
    }

    pub(super) fn too_many_points(&self, max: usize, found: usize) -> QueryError {
        self.too_many_points_of(max, found, found)
    }

    /// Refuses the points that were found. All points are about `all`.
    fn too_many_points_of(&self, max: usize, found: usize, all: usize) -> QueryError {
        let fits = self.step.with_fewer_points(all, max);
        QueryError::TooManyPoints {
            max,
            found,
            fits: fits.map_or_else(String::new, |step| format!(", such as {step}")),
        }
    }

    /// Adds the points of steps without readings.
    pub(super) fn fill(&self, rollups: &mut Rollups) {
        for series in rollups.values_mut() {
            self.fill.apply(series, self.grid.starts());
        }
    }
}
