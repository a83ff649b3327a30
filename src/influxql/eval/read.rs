//! Reads the data of a `SELECT` and of its subqueries in one pass, and feeds the rows to each.

use std::collections::BTreeMap;

use super::super::error::StatementError;
use super::super::source::{Next, Read, Request, Row, Series};
use super::super::time::NS_PER_MS;
use super::Evaluator;
use super::feed::Feed;
use super::hours::MS_PER_HOUR;
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

/// A group whose lone `min` or `max` has its value from the stats of an hour.
struct Selected<'p> {
    part: &'p Part<'p>,
    group: usize,
    /// The series of the group, as indexes in the part.
    places: Vec<usize>,
    series: Vec<&'p Series>,
    /// The start of the hour, in nanoseconds.
    start_ns: i64,
}

/// The instant of a value until the readings of its hour are read.
///
/// It is the latest one, so that a reading with the same value is preferred.
const UNKNOWN: i64 = i64::MAX;

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
            let Some((before, within, after)) = feed.hours(members, &request, &*self.source) else {
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
        if hours.is_empty() {
            return Ok(());
        }
        source.hours(&hours, &mut reader)?;
        self.read_instants(all, &of_hours, &hours)
    }

    /// Reads the instants of lone `min` and `max`: the readings of the hours from whose stats the values are.
    ///
    /// If these readings have expired, the instant is the start of the hour.
    fn read_instants(
        &mut self,
        all: &mut [Fed<'_>],
        of_hours: &[&Part<'_>],
        hours: &[Request<'_>],
    ) -> Result<(), StatementError> {
        let mut selected = Vec::new();
        for (&part, request) in of_hours.iter().zip(hours) {
            let Fed { feed, members, .. } = &mut all[part.fed];
            if !feed.shows_instants() {
                continue;
            }
            let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for (at, one) in members[part.nth].series.iter().enumerate() {
                groups.entry(one.group).or_default().push(at);
            }
            for (group, places) in groups {
                let Some(instant) = feed.selected_instant(group) else { continue };
                if request.range_ms.contains(&instant.div_euclid(NS_PER_MS)) {
                    let start_ns = std::mem::replace(instant, UNKNOWN);
                    let series: Vec<&Series> = places.iter().map(|at| part.series[*at]).collect();
                    selected.push(Selected { part, group, places, series, start_ns });
                }
            }
        }
        if selected.is_empty() {
            return Ok(());
        }
        let requests = selected.iter().map(|one| {
            let start_ms = one.start_ns.div_euclid(NS_PER_MS);
            let range_ms = start_ms..start_ms + MS_PER_HOUR;
            let (series, fields) = (&*one.series, &*one.part.fields);
            Request { series, fields, range_ms, newest: None, is_beside_stats: false, needs_ends: false }
        });
        let requests: Vec<Request<'_>> = requests.collect();
        let Self { source, usage, .. } = self;
        source.readings(&requests, &mut |read| match read {
            Read::Row(row) => {
                let Selected { part, places, .. } = &selected[row.request];
                let Fed { feed, members, .. } = &mut all[part.fed];
                feed.read_row(&mut members[part.nth], &Row { series: places[row.series], ..row }, usage)
            }
            Read::Hour(_) => Ok(Next::Row),
            Read::Others(count) => usage.points(count).map(|()| Next::Row),
        })?;
        for Selected { part, group, start_ns, .. } in &selected {
            if let Some(instant) = all[part.fed].feed.selected_instant(*group).filter(|instant| **instant == UNKNOWN) {
                *instant = *start_ns;
            }
        }
        Ok(())
    }
}
