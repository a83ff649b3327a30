//! Rollups from readings, for hours whose stats are not enough.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::merge::repeated;
use super::parts::{Part, Splitter};
use super::plan::Plan;
use crate::common::clock::rfc3339;
use crate::model::{Contents, Hour, SeriesFilter};
use crate::query::{Queries, QueryError};
use crate::store::{FirstReadings, HourStats, ReadingsQuery};

/// The most values of one request to the store. It may exceed them by the values of one instant.
const VALUES_PER_READ: usize = 20_000;

/// The number of values that a query may still read.
#[derive(Debug)]
pub(super) struct ReadBudget {
    max: u64,
    left: AtomicU64,
}

impl ReadBudget {
    pub(super) const fn new(max: u64) -> Self {
        Self { max, left: AtomicU64::new(max) }
    }

    /// Takes `values` from the budget. Fails if too few are left. They are those of a device up to the hour
    /// `until`.
    pub(super) fn take(&self, values: u64, plan: &Plan, until: Hour) -> Result<(), QueryError> {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(values));
        match taken {
            Ok(_) => Ok(()),
            Err(left) => {
                let found = values + (self.max - left);
                let hours = (f64::from(plan.hours_until(until)) * self.max as f64 / found as f64) as u64;
                Err(QueryError::TooManyValues { max: self.max, found, hours })
            }
        }
    }
}

/// The hours of a device: those whose stats suffice, and those to read.
pub(super) struct Hours {
    pub(super) stored: Vec<HourStats>,
    pub(super) pending: Vec<(Hour, Contents)>,
    /// The hours whose stored readings are needed, with the number of their values.
    to_read: Vec<(Hour, u64)>,
    /// The pending hours whose readings are needed.
    pub(super) to_split: Vec<(Hour, Contents)>,
    /// The number of values to read: stored ones, and wanted pending ones.
    ///
    /// In an hour where pending readings may repeat stored ones, as while a write is in flight, only the
    /// larger of both numbers counts.
    pub(super) values: u64,
}

impl Hours {
    /// Decides for each hour of a device whether its stats suffice.
    pub(super) fn of(plan: &Plan, stored: Vec<HourStats>, pending: Vec<(Hour, Contents)>) -> Self {
        let pending_hours: BTreeSet<Hour> = pending.iter().map(|(hour, _)| *hour).collect();
        let needs = |hour: &HourStats| plan.needs_readings(hour.hour, Some(hour), pending_hours.contains(&hour.hour));
        let (needed, stored): (Vec<HourStats>, Vec<HourStats>) = stored.into_iter().partition(needs);
        let (to_split, pending): (Vec<_>, Vec<_>) =
            pending.into_iter().partition(|(hour, _)| plan.needs_readings(*hour, None, true));
        let values = |hour: &HourStats| (hour.hour, hour.stats.iter().map(|(_, stats)| stats.count).sum());
        let to_read: Vec<(Hour, u64)> = needed.iter().map(values).filter(|(_, values)| *values > 0).collect();
        let repeated = repeated(&needed, &to_split);
        let not_stored = to_split.iter().map(|(hour, contents)| {
            let is_repeated = repeated.binary_search(hour).is_ok();
            let stored = to_read.binary_search_by_key(hour, |(hour, _)| *hour).ok().filter(|_| is_repeated);
            wanted_values(contents, &plan.series).saturating_sub(stored.map_or(0, |at| to_read[at].1))
        });
        let values = to_read.iter().map(|(_, values)| *values).chain(not_stored).sum();
        Self { stored, pending, to_read, to_split, values }
    }

    /// Returns the hours to read, in runs of successive hours.
    pub(super) fn runs(&self) -> impl Iterator<Item = &[(Hour, u64)]> {
        self.to_read.chunk_by(|(a, _), (b, _)| a.0 + 1 == b.0)
    }

    /// Returns those hours of `to_split` of which no stored readings are read.
    pub(super) fn only_pending(&self) -> impl Iterator<Item = &(Hour, Contents)> {
        let is_read = |hour: &Hour| self.to_read.binary_search_by_key(hour, |(hour, _)| *hour).is_ok();
        self.to_split.iter().filter(move |(hour, _)| !is_read(hour))
    }
}

/// Counts the values of the series that `series` selects.
fn wanted_values(contents: &Contents, series: &SeriesFilter) -> u64 {
    let is_wanted: Vec<bool> = contents.metrics().iter().map(|metric| series.matches(metric)).collect();
    contents.samples().iter().filter(|sample| is_wanted[sample.metric as usize]).count() as u64
}

/// Reads the needed readings of some hours of a device, up to the hour `until`, and splits them where steps
/// begin. It holds one page of readings at a time.
pub(super) async fn read(
    queries: &Queries,
    deadline: Instant,
    plan: &Plan,
    budget: &ReadBudget,
    device: &Arc<str>,
    hours: &Hours,
    until: Hour,
) -> Result<Vec<Part>, QueryError> {
    budget.take(hours.values, plan, until)?;
    let mut splitter = Splitter::new(&plan.grid, &plan.series);
    let mut expired = None;
    for (hour, contents) in hours.only_pending() {
        splitter.add(*hour, contents);
    }
    for run in hours.runs() {
        let mut left: Vec<u64> = run.iter().map(|(_, values)| *values).collect();
        let (first, last) = (run[0].0, run[run.len() - 1].0);
        let mut query = ReadingsQuery {
            device: Arc::clone(device),
            range_ms: first.start_ms()..last.end_ms(),
            series: plan.series.clone(),
            max_instants: usize::MAX,
            max_values: VALUES_PER_READ,
        };
        while query.range_ms.start < query.range_ms.end {
            let page = queries.ask(deadline, queries.store.readings(&query)).await?;
            for (hour, contents) in &page.hours {
                if let Some(left) = left.get_mut((hour.0 - first.0) as usize) {
                    *left = left.saturating_sub(contents.samples().len() as u64);
                }
            }
            let until_ms = page.complete_until_ms;
            add_page(&mut splitter, page, query.range_ms.start, &hours.to_split);
            query.range_ms.start = until_ms;
            tokio::task::yield_now().await;
        }
        let incomplete = run.iter().zip(left).rfind(|(_, left)| *left > 0);
        expired = incomplete.map_or(expired, |((hour, _), _)| Some(*hour));
    }
    match expired {
        Some(hour) if plan.needs_all_readings() => Err(QueryError::ReadingsExpired {
            hour: rfc3339(hour.start_ms()),
            after: rfc3339(hour.end_ms()),
            increases: plan.counts_increase(),
        }),
        _ => Ok(splitter.finish()),
    }
}

/// Merges a page of stored readings with pending ones, and splits both.
///
/// The page begins at `start_ms`. Pending readings outside of its time are ignored.
pub(super) fn add_page(splitter: &mut Splitter<'_>, page: FirstReadings, start_ms: i64, pending: &[(Hour, Contents)]) {
    let end_ms = page.complete_until_ms;
    let mut stored = page.hours.into_iter().peekable();
    let from = pending.partition_point(|(hour, _)| hour.end_ms() <= start_ms);
    let mut pending = pending[from..].iter().take_while(|(hour, _)| hour.start_ms() < end_ms).peekable();
    for hour in Hour::of(start_ms).0..Hour::at_or_after(end_ms).0 {
        let hour = Hour(hour);
        let stored = stored.next_if(|(of, _)| *of == hour).map(|(_, contents)| contents);
        let in_page =
            |contents: &Contents| contents.filter(|_, offset| (start_ms..end_ms).contains(&hour.instant_ms(offset)));
        let pending = pending.next_if(|(of, _)| *of == hour).map(|(_, contents)| in_page(contents));
        match (stored, pending) {
            (Some(stored), Some(pending)) => splitter.add(hour, &stored.merge(&pending)),
            (Some(only), None) | (None, Some(only)) => splitter.add(hour, &only),
            (None, None) => {}
        }
    }
}
