//! Stats of hours in place of readings: when they suffice, for which hours, and how windows add them.

use std::ops::Range;

use super::super::ast::Cast;
use super::super::error::StatementError;
use super::super::plan::{Aggregate, Call};
use super::super::source::{HourStats, Request, Source};
use super::super::time::{NS_PER_MS, TimeRange};
use super::super::zone;
use super::Evaluator;
use super::feed::Feed;
use super::group::Collected;
use super::members::Members;
use super::reduce::Reducer;
use super::usage::Usage;

pub(super) const MS_PER_HOUR: i64 = 3_600_000;

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
        let start = self.dimensions.windows.start_in(&mut self.window, time);
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

    /// Splits the range of a request: the part before its whole hours, the hours, the part after.
    ///
    /// Stats suffice for the whole hours. The two parts need readings. `None`: the whole range needs
    /// readings.
    pub(super) fn hours(
        &self,
        members: &Members,
        request: &Request<'_>,
        source: &dyn Source,
    ) -> Option<(Range<i64>, Range<i64>, Range<i64>)> {
        let is_of_stats = self.plan.calls.iter().all(|call| {
            let has_cast = self.plan.references[call.argument].1.is_some_and(|cast| cast != Cast::Field);
            !has_cast && call.aggregate.as_ref().is_some_and(Aggregate::is_of_stats)
        });
        let depends_on_fields = members.series.iter().any(|one| one.holds.is_none());
        if self.plan.calls.is_empty() || !is_of_stats || self.plan.has_auxiliary {
            return None;
        }
        // Without a bound, a range includes centuries in which zones had odd offsets.
        if depends_on_fields || !self.has_whole_hours(&source.span_ms(request)) {
            return None;
        }
        let Range { start, end } = request.range_ms;
        // If the ranges of the calls begin within hours, one call needs a part of an hour of which another
        // call needs the whole. The stats begin after the last such hour, and end before the first one.
        let ranges = || self.ranges.iter().map(|range| range.to_ms());
        let from = if start % MS_PER_HOUR == 0 { start } else { ranges().fold(start, |at, range| at.max(range.start)) };
        let to = if end % MS_PER_HOUR == 0 { end } else { ranges().fold(end, |at, range| at.min(range.end)) };
        let first = if from == i64::MIN { from } else { -(-from).div_euclid(MS_PER_HOUR) * MS_PER_HOUR };
        let last = if to == i64::MAX { to } else { to.div_euclid(MS_PER_HOUR) * MS_PER_HOUR };
        if first < last { Some((start..first, first..last, last..end)) } else { None }
    }

    /// Whether rows have the instant of the point of a lone `min` or `max`, which stats lack.
    pub(super) fn shows_instants(&self) -> bool {
        let is_extreme = |call: &Call| matches!(call.aggregate, Some(Aggregate::Min | Aggregate::Max));
        self.dimensions.windows.every_ns == 0 && self.plan.selects_points() && self.plan.calls.iter().all(is_extreme)
    }

    /// Returns the instant, in nanoseconds, of the point that a lone selector has selected in a group.
    pub(super) fn selected_instant(&mut self, group: usize) -> Option<&mut i64> {
        match self.groups[group].calls.first_mut()? {
            Collected::Windows(windows) => match windows.values_mut().next()? {
                Reducer::Selected(point) => Some(&mut point.time),
                _ => None,
            },
            Collected::Points(_) => None,
        }
    }

    /// Whether each window of a range consists of whole UTC hours.
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
