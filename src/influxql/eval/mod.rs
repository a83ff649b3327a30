//! The evaluator: turns statements into series of rows.

mod feed;
mod group;
mod hours;
mod members;
mod read;
mod reduce;
mod rows;
mod select;
mod sequence;
mod show;
mod stream;
mod usage;

use std::sync::Arc;

use jiff::tz::TimeZone;

use super::ast::Statement;
use super::error::StatementError;
use super::plan::Plan;
use super::source::Source;
use super::value::Value;
use group::RawRow;
use usage::Usage;

pub use usage::{Limits, Memory};

/// Receives the parts of an answer. An error ends the statement.
pub type Sink<'s> = dyn FnMut(OutSeries) -> Result<(), StatementError> + 's;

/// The settings for the answer to a statement.
#[derive(Debug, Clone)]
pub struct Options<'m> {
    /// The time of `now()`, in Unix nanoseconds.
    pub now_ns: i64,
    /// The databases that `SHOW DATABASES` lists. In other statements, any name means all data.
    pub databases: Vec<String>,
    /// The limits.
    pub limits: Limits,
    /// The memory of the statement.
    pub memory: &'m dyn Memory,
}

/// A series of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct OutSeries {
    /// The name of the measurement, or the subject of a `SHOW`; may be empty.
    pub name: Arc<str>,
    /// The tags of `GROUP BY`, ascending by key.
    pub tags: Vec<(Arc<str>, Arc<str>)>,
    /// The names of the columns.
    pub columns: Arc<[String]>,
    /// Whether the first column is the time of the row, in Unix nanoseconds.
    pub has_time: bool,
    /// The time zone of times; `None` is UTC.
    pub zone: Option<TimeZone>,
    /// The rows: the instant, if the series has times, and the other columns.
    pub rows: Vec<OutRow>,
    /// Whether more rows of the series follow in another document.
    pub is_partial: bool,
}

impl OutSeries {
    /// The series without its rows.
    pub(super) fn header(&self) -> Self {
        Self {
            name: Arc::clone(&self.name),
            tags: self.tags.clone(),
            columns: Arc::clone(&self.columns),
            has_time: self.has_time,
            zone: self.zone.clone(),
            rows: Vec::new(),
            is_partial: false,
        }
    }
}

/// A row of an answer: its instant in Unix nanoseconds and its values.
pub type OutRow = (i64, Box<[Value]>);

/// Answers a statement.
///
/// After an error, the caller answers the further statements of the query with
/// [`StatementError::not_executed`].
///
/// # Errors
/// If the statement is not supported or has no meaning, exceeds a limit, or the source fails.
pub fn execute(
    statement: &Statement,
    source: &mut dyn Source,
    options: &Options<'_>,
) -> Result<Vec<OutSeries>, StatementError> {
    let mut evaluator = Evaluator { source, options, usage: Usage::new(options), unchecked: 0 };
    match statement {
        Statement::Select(select) => evaluator.select_series(select),
        Statement::Show(show) => evaluator.show(show),
        Statement::CreateDatabase => Ok(Vec::new()),
        Statement::Unsupported(words) => Err(format!("{words} is not supported").into()),
    }
}

/// Answers a statement part by part. All parts together are the answer of [`execute`].
///
/// `sink` gets each part; a series may have several parts. An ascending `SELECT` of the rows of one
/// measurement, without functions, holds one part in memory at a time. The number of its rows and of the
/// values that it reads has no limit. All other statements are evaluated as a whole first.
///
/// # Errors
/// Those of [`execute`], perhaps after some parts, and those of `sink`.
pub fn stream(
    statement: &Statement,
    source: &mut dyn Source,
    options: &Options<'_>,
    sink: &mut Sink<'_>,
) -> Result<(), StatementError> {
    if let Statement::Select(select) = statement {
        let mut evaluator = Evaluator { source, options, usage: Usage::new(options), unchecked: 0 };
        return evaluator.stream(select, sink);
    }
    execute(statement, source, options)?.into_iter().try_for_each(sink)
}

/// The work on one statement, and what it has used of the limits.
struct Evaluator<'s> {
    source: &'s mut dyn Source,
    options: &'s Options<'s>,
    usage: Usage<'s>,
    /// The work since the source was last asked whether the statement may go on.
    unchecked: usize,
}

/// The work after which a statement asks the source whether it may go on.
const WORK_PER_CHECK: usize = 4_096;

impl Evaluator<'_> {
    /// Fails if the statement has to end.
    ///
    /// It asks the source only after each [`WORK_PER_CHECK`] of work.
    fn check_after(&mut self, work: usize) -> Result<(), StatementError> {
        self.unchecked = self.unchecked.saturating_add(work);
        if self.unchecked < WORK_PER_CHECK {
            return Ok(());
        }
        self.unchecked = 0;
        self.source.check()
    }

    /// Computes the columns of rows without functions.
    fn shown(&mut self, plan: &Plan, rows: impl Iterator<Item = RawRow>) -> Result<Vec<OutRow>, StatementError> {
        let mut shown = Vec::with_capacity(rows.size_hint().0);
        for row in rows {
            self.check_after(plan.columns.len() + plan.work)?;
            let values = plan.columns.iter().map(|(_, node)| node.value(&row.values, &[]));
            shown.push((row.time, values.collect()));
        }
        Ok(shown)
    }
}
