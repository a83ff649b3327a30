//! Reads the data of a `SELECT` and of its subqueries in one pass, and feeds the rows to each.

use super::super::error::StatementError;
use super::super::source::{Next, Read, Request, Series};
use super::Evaluator;
use super::feed::Feed;
use super::members::{Known, Members};
use super::select::{Input, Prepared, Table, TableSeries};

/// A `SELECT` or subquery that is being fed.
struct Fed<'p> {
    feed: Feed<'p>,
    /// The series of each measurement that the `SELECT` reads.
    members: Vec<Members>,
    /// Each subquery: its table, and its index among all `SELECT`s read together.
    subqueries: Vec<(&'p Table, usize)>,
}

/// A measurement that is read for a `SELECT`.
struct Part<'p> {
    /// The index of the `SELECT` among all that are read together.
    fed: usize,
    /// The index of the measurement in [`Fed::members`].
    nth: usize,
    fields: Vec<&'p str>,
    series: Vec<&'p Series>,
}

impl Evaluator<'_> {
    /// Reads the data of a `SELECT` and returns its series.
    pub(super) fn series_of(&mut self, prepared: &Prepared) -> Result<Vec<TableSeries>, StatementError> {
        let (mut all, mut parts) = (Vec::new(), Vec::new());
        self.open(prepared, &mut all, &mut parts)?;
        self.read(&mut all, &parts)?;
        let mut finished: Vec<Vec<TableSeries>> = Vec::new();
        for Fed { mut feed, subqueries, .. } in all {
            for (table, at) in subqueries {
                feed.table(self, table, &std::mem::take(&mut finished[at]))?;
            }
            finished.push(feed.finish(self)?);
        }
        Ok(finished.pop().unwrap_or_default())
    }

    /// Adds a `SELECT` to `all` after its subqueries, and its measurements to `parts`.
    ///
    /// Returns the index of the `SELECT` in `all`; `None`: it cannot have rows.
    fn open<'p>(
        &mut self,
        prepared: &'p Prepared,
        all: &mut Vec<Fed<'p>>,
        parts: &mut Vec<Part<'p>>,
    ) -> Result<Option<usize>, StatementError> {
        if prepared.is_empty() {
            return Ok(None);
        }
        let mut subqueries = Vec::new();
        for input in &prepared.inputs {
            if let Input::Subquery(inner) = input {
                subqueries.extend(self.open(inner, all, parts)?.map(|at| (&inner.table, at)));
            }
        }
        let (mut feed, mut members, fed) = (Feed::new(prepared), Vec::new(), all.len());
        for input in &prepared.inputs {
            let Input::Measurement(name, series) = input else { continue };
            let Known { fields, series, members: of_measurement } = feed.known(self, name, series)?;
            if series.is_empty() {
                continue;
            }
            feed.check_buckets(self)?;
            parts.push(Part { fed, nth: members.len(), fields, series });
            members.push(of_measurement);
        }
        all.push(Fed { feed, members, subqueries });
        Ok(Some(fed))
    }

    /// Reads the rows and the stats of all measurements.
    fn read(&mut self, all: &mut [Fed<'_>], parts: &[Part<'_>]) -> Result<(), StatementError> {
        // Requests for rows and for hours. `of_rows` and `of_hours` have the part of each request.
        let (mut of_rows, mut rows) = (Vec::new(), Vec::new());
        let (mut of_hours, mut hours) = (Vec::new(), Vec::new());
        for part in parts {
            let Fed { feed, members, .. } = &all[part.fed];
            let members = &members[part.nth];
            let request = feed.request(&part.series, &part.fields, members);
            if request.range_ms.is_empty() {
                continue; // the range has nanoseconds, but no whole millisecond
            }
            let Some((before, within, after)) = feed.hours(members, &request.range_ms) else {
                of_rows.push(part);
                rows.push(request);
                continue;
            };
            for range_ms in [before, after] {
                if !range_ms.is_empty() {
                    of_rows.push(part);
                    rows.push(Request { range_ms, is_beside_stats: true, ..request.clone() });
                }
            }
            of_hours.push(part);
            hours.push(Request { range_ms: within, ..request });
        }
        let Self { source, usage, .. } = self;
        let mut reader = |read: Read<'_>| match read {
            Read::Row(row) => {
                let Part { fed, nth, .. } = of_rows[row.request];
                let Fed { feed, members, .. } = &mut all[*fed];
                feed.read_row(&mut members[*nth], &row, usage)
            }
            Read::Hour(stats) => {
                let Part { fed, nth, .. } = of_hours[stats.request];
                let Fed { feed, members, .. } = &mut all[*fed];
                feed.hour(&members[*nth], &stats, usage).map(|()| Next::Row)
            }
            Read::Others(count) => usage.points(count).map(|()| Next::Row),
        };
        if !rows.is_empty() {
            source.readings(&rows, &mut reader)?;
        }
        if hours.is_empty() { Ok(()) } else { source.hours(&hours, &mut reader) }
    }
}
