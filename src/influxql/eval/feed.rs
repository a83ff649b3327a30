//! Feeds the rows of the sources into the groups of the answer.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::ast::{Cast, Fill, Limit};
use super::super::error::StatementError;
use super::super::plan::{Aggregate, Call, Condition, Dimensions, Plan, Schema};
use super::super::source::{Next, Request, Row, Series};
use super::super::time::TimeRange;
use super::super::value::Value;
use super::Evaluator;
use super::group::{Collected, Group, RawRow};
use super::members::{Known, Lookup, Members, OneSeries};
use super::reduce::{Point, Reducer};
use super::select::{Input, Prepared, Table, range_of_call};
use super::usage::Usage;

pub(super) const NS_PER_MS: i64 = 1_000_000;

/// As many comparisons of a condition count as one value against the limit of points.
const COMPARISONS_PER_VALUE: usize = 16;

/// The work of so many comparisons, in values.
pub(super) const fn work(comparisons: usize) -> usize {
    comparisons / COMPARISONS_PER_VALUE
}

/// The clauses of a `SELECT` that concern its rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) limit: Limit,
    pub(super) fill: Fill,
    pub(super) range: TimeRange,
    pub(super) is_descending: bool,
}

/// The work of a `SELECT` on its data.
pub(super) struct Feed<'p> {
    pub(super) plan: &'p Plan,
    pub(super) condition: Option<&'p Condition>,
    pub(super) dimensions: &'p Dimensions,
    pub(super) schema: &'p Schema,
    pub(super) settings: Settings,
    /// The range of each call.
    pub(super) ranges: Vec<TimeRange>,
    pub(super) groups: Vec<Group>,
    pub(super) index: HashMap<(Arc<str>, Vec<Arc<str>>), usize>,
    /// The keys of the tags of groups, and the value of a tag that a series does not have.
    pub(super) keys: Vec<Arc<str>>,
    pub(super) absent: Arc<str>,
    pub(super) series: u32,
    /// The work on a row, in values, beside reading it.
    work_per_row: usize,
}

impl<'p> Feed<'p> {
    /// The work on a `SELECT` without its data.
    pub(super) fn new(select: &'p Prepared) -> Self {
        let Prepared { plan, dimensions, schema, settings, .. } = select;
        let (condition, Settings { range, is_descending, .. }) = (select.condition.as_ref(), *settings);
        let of_call = |call: &Call| range_of_call(call.transform, dimensions, range, is_descending);
        Self {
            plan,
            condition,
            dimensions,
            schema,
            settings: *settings,
            ranges: plan.calls.iter().map(of_call).collect(),
            groups: Vec::new(),
            index: HashMap::new(),
            keys: dimensions.tags.iter().map(|key| Arc::from(&**key)).collect(),
            absent: Arc::from(""),
            series: 0,
            work_per_row: plan.calls.len() + work(condition.map_or(0, Condition::size)),
        }
    }

    /// Feeds one source.
    pub(super) fn input(&mut self, evaluator: &mut Evaluator<'_>, input: &Input) -> Result<(), StatementError> {
        match input {
            Input::Measurement(name, series) => self.measurement(evaluator, name, series),
            Input::Table(table) => self.table(evaluator, table),
        }
    }

    fn measurement(
        &mut self,
        evaluator: &mut Evaluator<'_>,
        name: &Arc<str>,
        series: &[Series],
    ) -> Result<(), StatementError> {
        let Known { fields, series: wanted, mut members } = self.known(evaluator, name, series)?;
        if wanted.is_empty() {
            return Ok(());
        }
        self.check_buckets(evaluator)?;
        let range_ms = self.range_ms();
        if range_ms.is_empty() {
            return Ok(()); // the range has nanoseconds, but no whole millisecond
        }
        let request = Request {
            measurement: name,
            series: &wanted,
            fields: &fields,
            range_ms,
            newest: self.newest(&members),
            is_beside_stats: false,
            needs_ends: self.plan.calls.iter().any(|call| call.aggregate.as_ref().is_some_and(Aggregate::is_end)),
        };
        let ranges = self.hours(&members, &request.range_ms);
        let Some((before, hours, after)) = ranges else {
            return self.readings(evaluator, &request, &mut members);
        };
        for range_ms in [before, after] {
            if !range_ms.is_empty() {
                let request = Request { range_ms, is_beside_stats: true, ..request.clone() };
                self.readings(evaluator, &request, &mut members)?;
            }
        }
        let Evaluator { source, usage, .. } = evaluator;
        let work_per_row = self.work_per_row;
        source.hours(&Request { range_ms: hours, ..request.clone() }, &mut |stats| {
            usage.points(work_per_row.max(1))?;
            self.hour(&members, &stats, usage)
        })
    }

    /// The number of rows at the end of each series that a descending `SELECT` without functions needs.
    /// `None`: it needs all.
    fn newest(&self, members: &Members) -> Option<usize> {
        let Settings { limit, is_descending, .. } = self.settings;
        let is_limited = self.plan.calls.is_empty() && is_descending && limit.rows > 0;
        let has_shown_fields_only = members.lookup.field[self.plan.shown..].iter().all(Option::is_none);
        if !is_limited || !has_shown_fields_only || members.series.iter().any(|one| one.holds != Some(true)) {
            return None;
        }
        usize::try_from(limit.rows.saturating_add(limit.skip_rows)).ok()
    }

    pub(super) fn readings(
        &mut self,
        evaluator: &mut Evaluator<'_>,
        request: &Request<'_>,
        members: &mut Members,
    ) -> Result<(), StatementError> {
        let Evaluator { source, usage, .. } = evaluator;
        let work_per_row = self.work_per_row;
        let mut reader = |row: Row<'_>| {
            usage.points(row.values.len().max(work_per_row))?;
            let Members { lookup, series } = &mut *members;
            for (place, value) in lookup.field.iter().zip(&mut series[row.series].values) {
                if let Some(place) = place {
                    *value = row.values[*place].map_or(Value::Null, Value::Float);
                }
            }
            self.row(members, row.series, row.ts_ms.saturating_mul(NS_PER_MS), usage)
        };
        source.readings(request, &mut reader)
    }

    fn table(&mut self, evaluator: &mut Evaluator<'_>, table: &Table) -> Result<(), StatementError> {
        let place = |(name, cast): &(String, Option<Cast>)| {
            if *cast == Some(Cast::Tag) { None } else { table.columns.iter().position(|column| column == name) }
        };
        let lookup = Lookup { field: self.plan.references.iter().map(place).collect(), is_of_table: true };
        let work_per_row = self.work_per_row;
        let (mut groups, mut prepared, mut series_of) = (Vec::new(), Vec::new(), Vec::new());
        for series in &table.series {
            let tag = |key: &str| {
                let found = series.tags.iter().find(|(known, _)| **known == *key);
                found.map_or(Value::Null, |(_, value)| Value::Text(Arc::clone(value)))
            };
            self.charge_series(evaluator)?;
            if let Some(one) = self.prepare(&mut evaluator.usage, &series.name, &lookup, tag)? {
                groups.push(one.group);
                prepared.push(one);
                series_of.push(series);
            }
        }
        self.limit_series(groups, &mut prepared, &mut series_of);
        let mut members = Members { lookup, series: prepared };
        let Evaluator { source, usage, .. } = evaluator;
        for (at, series) in series_of.into_iter().enumerate() {
            for (time, values) in &series.rows {
                usage.points(values.len().max(work_per_row))?;
                if self.plan.patterns > 0 {
                    source.check()?;
                }
                for (place, value) in members.lookup.field.iter().zip(&mut members.series[at].values) {
                    if let Some(place) = place {
                        *value = values[*place].clone();
                    }
                }
                self.row(&mut members, at, *time, usage)?;
            }
        }
        Ok(())
    }

    /// Feeds a row of the series at an index. The values of the row are set.
    fn row(
        &mut self,
        members: &mut Members,
        at: usize,
        time: i64,
        usage: &mut Usage<'_>,
    ) -> Result<Next, StatementError> {
        let Members { lookup, series } = members;
        let one = &mut series[at];
        if one.holds.is_none() {
            let holds = self.condition.and_then(|condition| condition.holds(&|at| one.values.get(at), &one.matched));
            if holds != Some(true) {
                return Ok(Next::Row);
            }
        }
        for ((_, cast), (value, field)) in self.plan.references.iter().zip(one.values.iter_mut().zip(&lookup.field)) {
            if let (Some(cast), Some(_)) = (cast, field) {
                *value = converted(value, *cast);
            }
        }
        if self.plan.calls.is_empty() {
            return self.raw_row(one, lookup, time, usage);
        }
        let mut start = None;
        for (at, call) in self.plan.calls.iter().enumerate() {
            let range = self.ranges[at];
            let value = &one.values[call.argument];
            let is_in_range = lookup.is_of_table || (range.min..=range.max).contains(&time);
            if value.is_null() || lookup.field[call.argument].is_none() || !is_in_range {
                continue;
            }
            let auxiliary = if self.plan.has_auxiliary { Some(lookup.shown(&one.values)) } else { None };
            let size = auxiliary.as_ref().map_or(0, |values| values.len());
            let point = Point { time, order: one.order, value: value.clone(), auxiliary };
            match (&mut self.groups[one.group].calls[at], &call.aggregate) {
                (Collected::Windows(windows), Some(aggregate)) => {
                    let every_ns = self.dimensions.windows.every_ns;
                    let start = *start
                        .get_or_insert_with(|| if every_ns > 0 { self.dimensions.windows.start_of(time) } else { 0 });
                    if aggregate.keeps_points() {
                        usage.rows(1, size)?;
                    }
                    if let Some(reducer) = windows.get_mut(&start) {
                        reducer.add(aggregate, point);
                    } else {
                        usage.buckets(1, self.plan.calls.len())?;
                        windows.insert(start, Reducer::new(aggregate, point));
                    }
                }
                (Collected::Points(points), _) => {
                    usage.rows(1, size)?;
                    points.push(point);
                }
                (Collected::Windows(_), None) => debug_assert!(false, "windows belong to an aggregate"),
            }
        }
        Ok(Next::Row)
    }

    /// Keeps a row for a `SELECT` without functions, but no more than `LIMIT` and `OFFSET` can show.
    fn raw_row(
        &mut self,
        one: &mut OneSeries,
        lookup: &Lookup,
        time: i64,
        usage: &mut Usage<'_>,
    ) -> Result<Next, StatementError> {
        let shown = &one.values[..self.plan.shown];
        let has_value = |(value, field): (&Value, &Option<usize>)| field.is_some() && !value.is_null();
        if !lookup.is_of_table && !shown.iter().zip(&lookup.field).any(has_value) {
            return Ok(Next::Row);
        }
        let group = &mut self.groups[one.group];
        group.rows.push(RawRow { time, order: one.order, values: lookup.shown(shown) });
        let limit = self.settings.limit;
        if limit.rows == 0 {
            usage.rows(1, shown.len())?;
            return Ok(Next::Row);
        }
        let count = usize::try_from(limit.rows.saturating_add(limit.skip_rows)).unwrap_or(usize::MAX);
        if group.rows.len() > count.saturating_mul(2).max(1_024) {
            group.keep_first(count, self.settings.is_descending);
        } else if group.rows.len() > group.most_rows {
            group.most_rows = group.rows.len();
            usage.rows(1, shown.len())?;
        }
        one.rows += 1;
        if one.rows >= count && !self.settings.is_descending && !lookup.is_of_table {
            Ok(Next::Series)
        } else {
            Ok(Next::Row)
        }
    }
}

fn converted(value: &Value, cast: Cast) -> Value {
    match (cast, value) {
        (Cast::Integer | Cast::Unsigned, Value::Float(_)) => value.to_integer(),
        (Cast::Float, Value::Integer(_)) => value.to_float(),
        (Cast::Text, Value::Text(_)) | (Cast::Boolean, Value::Boolean(_)) => value.clone(),
        (Cast::Text | Cast::Boolean, _) => Value::Null,
        _ => value.clone(),
    }
}
