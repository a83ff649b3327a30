//! The data of InfluxQL statements, from the device index and from queries.
//!
//! A blocking thread evaluates the statements, and waits here for the answer of each query. Each wait ends at
//! the deadline of the statement, and when the client is gone.
//!
//! A statement fails if stored readings are missing in an answer, because its result would be wrong. If the
//! answer lacks devices because the device index lacks them, or readings because pending is full, the
//! statement fails only if its format has no place for a note.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::catalogue::{Catalogue, Place};
use super::index::Gathered;
use super::reading::{Order, Reads, Stats, all_hours, stats_of};
use crate::access::DeviceScope;
use crate::http::problem::Problem;
use crate::influxql::{Found, Memory, Next, Read, Reader, Request, Source, StatementError, Wanted};
use crate::query::{Answer, Column, Columns, MAX_METRICS, Missing, Queries, QueryError};

/// The data of one statement, for the devices of one token.
#[expect(clippy::struct_excessive_bools, reason = "each says something else of a statement or of its answer")]
pub(super) struct Stored<'s> {
    pub(super) queries: &'s Queries,
    pub(super) scope: &'s DeviceScope,
    pub(super) runtime: &'s Handle,
    pub(super) deadline: Instant,
    /// Whether the answer is sent in parts. Then each device has its own deadline.
    pub(super) is_in_parts: bool,
    pub(super) cancelled: &'s CancellationToken,
    pub(super) catalogue: &'s Catalogue,
    pub(super) memory: &'s dyn Memory,
    pub(super) now_ms: i64,
    /// The most series that the statement may use.
    pub(super) max_series: usize,
    /// The place of the values of each series, by the key of the series.
    pub(super) places: Vec<Place>,
    /// Readings that were acknowledged within this time may be missing.
    pub(super) lagging: Option<Duration>,
    /// Whether the statement is a `SHOW`, which lists the device index.
    ///
    /// Its answer may lack series that the index lacks, and then has a note.
    pub(super) is_of_index: bool,
    /// A device with more series than the index keeps. The answer then has a note.
    pub(super) incomplete: Option<Arc<str>>,
    /// Whether the format of the answer has a place for notes on missing data.
    pub(super) notes_missing: bool,
    /// Whether the device index lacks devices. The answer then has a note.
    pub(super) lacks_devices: bool,
    /// Whether memory was taken for slices of readings that are read ahead.
    pub(super) has_memory_ahead: bool,
    /// The problem of the query that failed. Only the log may have its details.
    pub(super) failure: Option<Problem>,
}

impl Stored<'_> {
    /// Waits for the answer of a query.
    pub(super) fn wait<T>(&mut self, answer: impl Future<Output = Result<T, QueryError>>) -> Result<T, StatementError> {
        let (deadline, timeout) = (self.deadline, self.queries.limits().timeout);
        let timeout = |_| QueryError::Timeout(timeout);
        let answer = async { tokio::time::timeout_at(deadline, answer).await.map_err(timeout)? };
        let answer = self.runtime.block_on(self.cancelled.run_until_cancelled(answer));
        answer.ok_or_else(gone)?.map_err(|error| self.failed(error))
    }

    /// Makes the error of the statement, whose text has no details of the store.
    fn failed(&mut self, error: QueryError) -> StatementError {
        let problem = Problem::from(error);
        let error = StatementError::new(problem.detail());
        self.failure = Some(problem);
        error
    }

    /// Waits for an answer that must be complete.
    ///
    /// If the device index lacks devices, or pending is full, the answer gets a note, or an error if its
    /// format has no place for notes.
    pub(super) fn wait_for_all<T>(
        &mut self,
        answer: impl Future<Output = Result<Answer<T>, QueryError>>,
    ) -> Result<T, StatementError> {
        let Answer { body, lagging, partial } = self.wait(answer)?;
        self.lagging = self.lagging.max(lagging);
        match partial {
            Some(Missing::Devices) if self.notes_missing => self.lacks_devices = true,
            Some(missing) => return Err(self.failed(QueryError::incomplete(missing))),
            None => {}
        }
        if let Some(lagging) = lagging.filter(|_| !self.notes_missing) {
            return Err(note_of_lag(lagging).into());
        }
        Ok(body)
    }

    /// Returns notes on data that may be missing in the answer.
    pub(super) fn warnings(&self) -> Vec<String> {
        let of_index = |device: &Arc<str>| {
            format!(
                "device {device} has more than {MAX_METRICS} series; those that are silent for longest may be missing"
            )
        };
        let missing = self.lacks_devices.then(|| Missing::Devices.reason());
        let notes = [self.lagging.map(note_of_lag), self.incomplete.as_ref().map(of_index), missing];
        notes.into_iter().flatten().collect()
    }
}

impl Source for Stored<'_> {
    fn series(&mut self, wanted: &[Wanted]) -> Result<Vec<BTreeMap<Arc<str>, Found>>, StatementError> {
        let mut gathered = Gathered::new(wanted, self.catalogue);
        let (ids, prefix) = (gathered.ids(), gathered.prefix(self.catalogue));
        self.each_device(ids, prefix, |source, device| gathered.add(source, device))?;
        Ok(gathered.finish())
    }

    fn check(&self) -> Result<(), StatementError> {
        check(self.cancelled, self.deadline, self.queries.limits().timeout)
    }

    fn span_ms(&self, request: &Request<'_>) -> Range<i64> {
        let places = request.series.iter().filter_map(|series| self.places.get(series.key));
        let spans = places.map(|place| place.span_ms.clone());
        let span = spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        span.start.max(request.range_ms.start)..span.end.min(request.range_ms.end)
    }

    fn readings(&mut self, requests: &[Request<'_>], reader: &mut Reader<'_>) -> Result<(), StatementError> {
        let mut devices = self.devices(requests)?;
        self.find_newest(requests, &mut devices, reader)?;
        // Stats are counted before readings are read. Otherwise a reading that arrives in between would seem
        // to be missing.
        let counts = self.count_beside_stats(requests, &mut devices, reader)?;
        let mut reads = Reads::of(&devices);
        for nth in 0..devices.len() {
            if self.read_device(&mut devices, nth, &mut reads, reader)? == Next::End {
                return Ok(());
            }
            devices[nth].check_read(nth, &counts)?;
        }
        Ok(())
    }

    fn hours(&mut self, requests: &[Request<'_>], reader: &mut Reader<'_>) -> Result<(), StatementError> {
        let devices = self.devices(requests)?;
        let mut columns = Columns::NONE.with(Column::Count).with(Column::Min).with(Column::Max).with(Column::Sum);
        if requests.iter().any(|request| request.needs_ends) {
            columns = columns.with(Column::First).with(Column::Last);
        }
        let asked = all_hours(requests, &devices);
        self.each_hour(&devices, &asked, columns, Order::Ascending, &mut |stats| match stats {
            Stats::Of(at, target, points) => points
                .iter()
                .try_for_each(|point| reader(Read::Hour(stats_of(&devices[at], target, point))).map(|_| ())),
            Stats::Others(count) => reader(Read::Others(count)).map(|_| ()),
        })
    }
}

fn note_of_lag(lagging: Duration) -> String {
    format!("readings of the last {:.1} s may be missing", lagging.as_secs_f64())
}

fn gone() -> StatementError {
    "the client is gone".into()
}

/// Fails if the client is gone, or the deadline has passed.
pub(super) fn check(cancelled: &CancellationToken, deadline: Instant, timeout: Duration) -> Result<(), StatementError> {
    if cancelled.is_cancelled() {
        return Err(gone());
    }
    if Instant::now() >= deadline {
        return Err(QueryError::Timeout(timeout).to_string().into());
    }
    Ok(())
}

/// Takes memory for `more` bytes of data, in steps of one MiB.
///
/// `bytes` is the size of the data so far.
pub(super) fn grow(memory: &dyn Memory, bytes: &mut usize, more: usize) -> Result<(), StatementError> {
    const STEP: usize = 1 << 20;
    let before = bytes.div_ceil(STEP);
    *bytes += more;
    match bytes.div_ceil(STEP) - before {
        0 => Ok(()),
        steps => memory.grow(steps * STEP),
    }
}
