//! Stats of hours in place of readings: when they suffice, for which hours, and how windows add them.

use std::ops::Range;

use super::super::ast::Cast;
use super::super::error::StatementError;
use super::super::source::HourStats;
use super::super::time::{NS_PER_MS, TimeRange};
use super::super::zone;
use super::Evaluator;
use super::feed::Feed;
use super::group::Collected;
use super::members::Members;
use super::reduce::Reducer;
use super::usage::Usage;

const MS_PER_HOUR: i64 = 3_600_000;

impl Feed<'_> {
    /// Adds the stats of an hour to its window.
    pub(super) fn hour(
        &mut self,
        members: &Members,
        stats: &HourStats,
        usage: &mut Usage<'_>,
    ) -> Result<(), StatementError> {
        let Members { lookup, series, .. } = members;
        let one = &series[stats.series];
        let references = &lookup.references[stats.field];
        let calls: usize = references.iter().map(|reference| self.calls_of[*reference].len()).sum();
        usage.points(calls.max(1))?;
        let time = stats.start_ms.saturating_mul(NS_PER_MS);
        let start = self.dimensions.windows.start_of(time);
        for &at in references.iter().flat_map(|reference| &self.calls_of[*reference]) {
            let range = self.ranges[at];
            if time < range.min || time > range.max {
                continue;
            }
            let (Collected::Windows(windows), Some(aggregate)) =
                (&mut self.groups[one.group].calls[at], &self.plan.calls[at].aggregate)
            else {
                continue;
            };
            let reducer = Reducer::of_stats(aggregate, stats, one.order);
            if let Some(known) = windows.get_mut(&start) {
                known.merge(aggregate, reducer);
            } else {
                usage.buckets(1, self.plan.calls.len())?;
                windows.insert(start, reducer);
            }
        }
        Ok(())
    }

    /// The range that the calls need together, in milliseconds, half-open.
    pub(super) fn range_ms(&self) -> Range<i64> {
        let min = self.ranges.iter().map(|range| range.min).min().unwrap_or(self.settings.range.min);
        let max = self.ranges.iter().map(|range| range.max).max().unwrap_or(self.settings.range.max);
        TimeRange { min, max }.to_ms()
    }

    /// Splits a range: the part before its whole hours, the hours, the part after.
    ///
    /// Stats suffice for the whole hours. The two parts need readings. `None`: the whole range needs
    /// readings.
    pub(super) fn hours(
        &self,
        members: &Members,
        range_ms: &Range<i64>,
    ) -> Option<(Range<i64>, Range<i64>, Range<i64>)> {
        let windows = &self.dimensions.windows;
        let needs_point = windows.every_ns == 0 && self.plan.calls.len() == 1;
        let is_of_stats = self.plan.calls.iter().all(|call| {
            let has_cast = self.plan.references[call.argument].1.is_some_and(|cast| cast != Cast::Field);
            let needs_point = needs_point && call.transform.is_none();
            !has_cast && call.aggregate.as_ref().is_some_and(|aggregate| aggregate.is_of_stats(needs_point))
        });
        let depends_on_fields = members.series.iter().any(|one| one.holds.is_none());
        let has_one_range = self.ranges.iter().all(|range| *range == self.ranges[0]);
        if self.plan.calls.is_empty() || !is_of_stats || self.plan.has_auxiliary || !has_one_range {
            return None;
        }
        if depends_on_fields || !self.has_whole_hours(range_ms) {
            return None;
        }
        let (from, to) = (range_ms.start, range_ms.end);
        let first = if from == i64::MIN { from } else { -(-from).div_euclid(MS_PER_HOUR) * MS_PER_HOUR };
        let end = if to == i64::MAX { to } else { to.div_euclid(MS_PER_HOUR) * MS_PER_HOUR };
        if first < end { Some((from..first, first..end, end..to)) } else { None }
    }

    /// Whether each window consists of whole UTC hours.
    fn has_whole_hours(&self, range_ms: &Range<i64>) -> bool {
        const HOUR_NS: i64 = MS_PER_HOUR * NS_PER_MS;
        let windows = &self.dimensions.windows;
        if windows.every_ns == 0 {
            return true;
        }
        let is_whole = windows.every_ns % HOUR_NS == 0 && windows.offset_ns % HOUR_NS == 0;
        is_whole
            && windows.zone.as_ref().is_none_or(|zone| {
                let (min, max) = (range_ms.start.saturating_mul(NS_PER_MS), range_ms.end.saturating_mul(NS_PER_MS));
                zone::has_whole_hours(zone, min, max)
            })
    }

    /// Fails, before data is read, if the range has more windows than the limit.
    ///
    /// A range without a start is not checked.
    pub(super) fn check_buckets(&self, evaluator: &Evaluator<'_>) -> Result<(), StatementError> {
        let every_ns = self.dimensions.windows.every_ns;
        if every_ns == 0 || !self.settings.range.has_min() {
            return Ok(());
        }
        let windows =
            (i128::from(self.settings.range.max) - i128::from(self.settings.range.min)) / i128::from(every_ns) + 1;
        let windows = usize::try_from(windows).unwrap_or(usize::MAX);
        evaluator.usage.check_buckets(windows)
    }
}
