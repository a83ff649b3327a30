//! The plan of a query for rollups: its steps, and the data that they need.

use std::ops::Range;

use super::compare::Alignment;
use super::increase::{LOOK_BACK_MS, growth_of};
use super::{Column, Columns, Fill, Grid, Rollups, RollupsRequest, Step};
use crate::model::{Hour, MS_PER_HOUR, Metric, SeriesFilter};
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

    pub(super) const fn counts_increase(&self) -> bool {
        self.columns.has(Column::Increase)
    }

    /// The number of hours or of steps of a device, whichever is larger.
    pub(super) fn size_of_device(&self) -> usize {
        (self.hours.end.0.abs_diff(self.hours.start.0) as usize).max(self.grid.starts().len())
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

    pub(super) fn too_many_points(&self, max: usize, found: usize) -> QueryError {
        let fits = self.step.with_fewer_points(found, max);
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
