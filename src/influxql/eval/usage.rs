//! The resources that a statement uses: counts with limits, and memory.

use std::fmt;

use crate::common::work;

use super::super::error::StatementError;
use super::super::value::Value;
use super::Options;
use super::feed::work_of;

/// The limits of one statement.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most series that the statement may read.
    pub max_series: usize,
    /// The most windows that each call may compute, over all series of the answer.
    pub max_buckets: usize,
    /// The most values that the statement may read or keep.
    pub max_points: usize,
    /// The most rows of the answer. Rows of subqueries do not count.
    pub max_rows: usize,
}

/// The memory that a statement may take.
pub trait Memory: fmt::Debug {
    /// Takes more bytes, which stay taken until the end of the answer.
    ///
    /// # Errors
    /// If no more memory is left.
    fn grow(&self, bytes: usize) -> Result<(), StatementError>;

    /// Takes bytes for reading ahead, and returns whether they were left.
    ///
    /// The statement goes on without them. They may be those of a statement before.
    fn try_grow(&self, bytes: usize) -> bool {
        self.grow(bytes).is_ok()
    }
}

/// The least memory that a statement takes from [`Memory`] in one call, in bytes.
const GROW_BYTES: usize = 1 << 20;

/// The memory of a row or a point beside its values, in bytes.
const ROW_BYTES: usize = 64;

/// The counts and the memory that a statement has used.
pub(super) struct Usage<'o> {
    limits: Limits,
    memory: &'o dyn Memory,
    points: usize,
    buckets: usize,
    series: usize,
    /// The bytes in use.
    bytes: usize,
    /// The bytes that were taken from [`Memory`].
    granted: usize,
}

impl<'o> Usage<'o> {
    pub(super) const fn new(options: &'o Options<'_>) -> Self {
        let Options { limits, memory, .. } = options;
        Self { limits: *limits, memory: *memory, points: 0, buckets: 0, series: 0, bytes: 0, granted: 0 }
    }

    /// Counts series.
    pub(super) fn series(&mut self, more: usize) -> Result<(), StatementError> {
        charge(&mut self.series, more, self.limits.max_series, "series", "query.max_points")
    }

    /// Counts values that are read.
    pub(super) fn points(&mut self, more: usize) -> Result<(), StatementError> {
        work::count(more);
        charge(&mut self.points, more, self.limits.max_points, "point", "query.max_values_read")
    }

    /// Counts comparisons or copied values.
    ///
    /// Some of them together count as one value that is read: see [`work_of`].
    pub(super) fn comparisons(&mut self, more: usize) -> Result<(), StatementError> {
        work::count(more);
        self.points(work_of(more))
    }

    /// Counts windows and their memory.
    ///
    /// The limit is [`Limits::max_buckets`] for each of `calls` calls.
    pub(super) fn buckets(&mut self, more: usize, calls: usize) -> Result<(), StatementError> {
        let max = self.limits.max_buckets.saturating_mul(calls.max(1));
        charge(&mut self.buckets, more, max, "buckets", "query.max_points")?;
        self.rows(more, 2)
    }

    /// Fails if `count` windows exceed the limit of one call.
    pub(super) fn check_buckets(&self, count: usize) -> Result<(), StatementError> {
        charge(&mut 0, count, self.limits.max_buckets, "buckets", "query.max_points")
    }

    /// Lifts the limit of values that the statement may read.
    pub(super) const fn lift_point_limit(&mut self) {
        self.limits.max_points = usize::MAX;
    }

    /// The bytes that are in use now, for [`Self::release`].
    pub(super) const fn mark(&self) -> usize {
        self.bytes
    }

    /// Releases the bytes that came into use since [`Self::mark`] returned `bytes`.
    ///
    /// They stay taken from [`Memory`], so that later rows can use them.
    pub(super) const fn release(&mut self, bytes: usize) {
        self.bytes = bytes;
    }

    /// Takes the memory of `rows` rows or points with `values` values each.
    pub(super) fn rows(&mut self, rows: usize, values: usize) -> Result<(), StatementError> {
        let of_row = ROW_BYTES.saturating_add(values.saturating_mul(size_of::<Value>()));
        self.memory(rows.saturating_mul(of_row))
    }

    /// Counts `bytes` as in use.
    ///
    /// Takes more from [`Memory`] if the bytes that were taken do not suffice.
    pub(super) fn memory(&mut self, bytes: usize) -> Result<(), StatementError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.granted {
            let more = (self.bytes - self.granted).max(GROW_BYTES);
            self.memory.grow(more)?;
            self.granted += more;
        }
        Ok(())
    }
}

/// Adds `more` to a count. Fails if the count exceeds its limit.
fn charge(used: &mut usize, more: usize, limit: usize, what: &str, key: &str) -> Result<(), StatementError> {
    *used = used.saturating_add(more);
    if *used > limit {
        return Err(format!("max-select-{what} limit exceeded: ({used}/{limit}); {key} is the limit").into());
    }
    Ok(())
}
