//! Feeds the rows of measurements and subqueries into the groups of the answer.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::super::ast::{Cast, Fill, Limit};
use super::super::error::StatementError;
use super::super::plan::{Aggregate, Call, Condition, Dimensions, Plan, Reference, Schema};
use super::super::source::{Next, Request, Row, Series};
use super::super::time::{NS_PER_MS, TimeRange};
use super::super::value::Value;
use super::Evaluator;
use super::group::{Collected, Group, RawRow};
use super::members::{Lookup, Members, OneSeries};
use super::reduce::{Point, Reducer};
use super::select::{Prepared, Table, TableSeries, range_of_call};
use super::usage::Usage;

/// How many comparisons count as one value against the limit of points.
const COMPARISONS_PER_VALUE: usize = 16;

/// Returns how many values some comparisons count as, against the limit of points.
pub(super) const fn work_of(comparisons: usize) -> usize {
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

/// A `SELECT` while it is fed: rows go in, and its groups collect them.
pub(super) struct Feed<'p> {
    pub(super) plan: &'p Plan,
    pub(super) condition: Option<&'p Condition>,
    pub(super) dimensions: &'p Dimensions,
    pub(super) schema: &'p Schema,
    pub(super) settings: Settings,
    /// The range of each call.
    ///
    /// For a transform of windows, it is longer than the range of the `SELECT`: see [`range_of_call`].
    pub(super) ranges: Vec<TimeRange>,
    pub(super) groups: Vec<Group>,
    pub(super) index: HashMap<(Arc<str>, Vec<Arc<str>>), usize>,
    /// The tag keys of `GROUP BY`.
    pub(super) keys: Vec<Arc<str>>,
    /// The value of a tag that a series does not have: one shared empty text.
    pub(super) absent: Arc<str>,
    pub(super) series: u32,
    /// For each reference, the calls that have it as their argument.
    pub(super) calls_of: Vec<Vec<usize>>,
    /// The known part of the window of the row before.
    pub(super) window: Range<i64>,
    /// The work for a row, as a number of values: its condition and its copied values.
    work_per_row: usize,
    /// The references that the current row sets.
    ///
    /// The list is kept so that its memory is used again.
    set: Vec<usize>,
}

impl<'p> Feed<'p> {
    /// Creates the feed of a `SELECT`, without data.
    pub(super) fn new(select: &'p Prepared) -> Self {
        let Prepared { plan, dimensions, schema, settings, .. } = select;
        let (condition, Settings { range, is_descending, .. }) = (select.condition.as_ref(), *settings);
        let of_call = |call: &Call| range_of_call(call.transform, dimensions, range, is_descending);
        let mut calls_of = vec![Vec::new(); plan.references.len()];
        for (at, call) in plan.calls.iter().enumerate() {
            calls_of[call.argument].push(at);
        }
        let copied = if plan.calls.is_empty() || plan.has_auxiliary { plan.shown } else { 0 };
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
            calls_of,
            window: 0..0,
            work_per_row: work_of(condition.map_or(0, Condition::size) + copied),
            set: Vec::new(),
        }
    }

    /// Makes the request for a measurement.
    pub(super) fn request<'r>(
        &self,
        series: &'r [&'r Series],
        fields: &'r [&'r str],
        members: &Members,
    ) -> Request<'r> {
        let is_end = |call: &Call| call.aggregate.as_ref().is_some_and(Aggregate::is_end);
        Request {
            series,
            fields,
            range_ms: self.range_ms(),
            newest: self.newest(members),
            is_beside_stats: false,
            needs_ends: self.plan.calls.iter().any(is_end),
        }
    }

    /// Returns how many rows at the end of each series are needed; `None`: all.
    ///
    /// Only a descending `SELECT` with a `LIMIT` needs fewer, if it has no functions and its condition uses
    /// no field.
    fn newest(&self, members: &Members) -> Option<usize> {
        let Settings { limit, is_descending, .. } = self.settings;
        let is_limited = self.plan.calls.is_empty() && is_descending && limit.rows > 0;
        let has_shown_fields_only = members.lookup.field[self.plan.shown..].iter().all(Option::is_none);
        if !is_limited || !has_shown_fields_only || members.series.iter().any(|one| one.holds != Some(true)) {
            return None;
        }
        Some(limit.rows.saturating_add(limit.skip_rows))
    }

    /// Feeds a row of a measurement.
    pub(super) fn read_row(
        &mut self,
        members: &mut Members,
        row: &Row<'_>,
        usage: &mut Usage<'_>,
    ) -> Result<Next, StatementError> {
        members.enter(row.series);
        let mut set = std::mem::take(&mut self.set);
        for (field, value) in row.values {
            for &reference in &members.lookup.references[*field] {
                members.values[reference] = Value::Float(*value);
                set.push(reference);
            }
        }
        let calls: usize = set.iter().map(|reference| self.calls_of[*reference].len()).sum();
        let points = row.values.len().max(self.work_per_row + calls);
        let time = row.ts_ms.saturating_mul(NS_PER_MS);
        let next = usage.points(points).and_then(|()| self.row(members, row.series, time, &set, usage));
        for reference in set.drain(..) {
            members.values[reference] = Value::Null;
        }
        self.set = set;
        next
    }

    /// Feeds the rows of a subquery.
    pub(super) fn table(
        &mut self,
        evaluator: &mut Evaluator<'_>,
        table: &Table,
        of_table: &[TableSeries],
    ) -> Result<(), StatementError> {
        let mut places = HashMap::new();
        for (at, column) in table.columns.iter().enumerate() {
            places.entry(&**column).or_insert(at);
        }
        let (references, schema) = (&self.plan.references, self.schema);
        let place = |(name, cast): &Reference| {
            let own = |name: &str| places.get(name).copied();
            let of_alias = || if table.tags.contains(name) { None } else { own(schema.tag_of_alias(name)?) };
            if *cast == Some(Cast::Tag) { None } else { own(name).or_else(of_alias) }
        };
        let lookup = Lookup::new(references, references.iter().map(place).collect(), true);
        let set: Vec<usize> = (0..references.len()).filter(|at| lookup.field[*at].is_some()).collect();
        let work_per_row = self.work_per_row + self.plan.calls.len();
        let (mut groups, mut prepared, mut series_of) = (Vec::new(), Vec::new(), Vec::new());
        for series in of_table {
            let tag = |key: &str| {
                let own = |key: &str| series.tags.binary_search_by(|(known, _)| (**known).cmp(key)).ok();
                let found = own(key).or_else(|| own(schema.tag_of_alias(key)?));
                found.map_or(Value::Null, |at| Value::Text(Arc::clone(&series.tags[at].1)))
            };
            self.charge_series(&lookup, evaluator)?;
            if let Some(one) = self.prepare(&mut evaluator.usage, &series.name, &lookup, tag)? {
                groups.push(one.group);
                prepared.push(one);
                series_of.push(series);
            }
        }
        self.limit_series(groups, &mut prepared, &mut series_of);
        let mut members = Members::new(lookup, prepared);
        let Evaluator { source, usage, .. } = evaluator;
        for (at, series) in series_of.into_iter().enumerate() {
            for (time, values) in &series.rows {
                usage.points(values.len().max(work_per_row))?;
                if self.plan.patterns > 0 {
                    source.check()?;
                }
                members.enter(at);
                for &reference in &set {
                    if let Some(place) = members.lookup.field[reference] {
                        members.values[reference] = values[place].clone();
                    }
                }
                self.row(&mut members, at, *time, &set, usage)?;
            }
        }
        Ok(())
    }

    /// Feeds a row of the series at the index `at`.
    ///
    /// The values of the row are in `members`, and `set` has the references to the fields that the row has.
    fn row(
        &mut self,
        members: &mut Members,
        at: usize,
        time: i64,
        set: &[usize],
        usage: &mut Usage<'_>,
    ) -> Result<Next, StatementError> {
        let Members { lookup, series, values, .. } = members;
        let one = &mut series[at];
        for &reference in set {
            if let Some(cast) = self.plan.references[reference].1 {
                values[reference] = converted(&values[reference], cast);
            }
        }
        if one.holds.is_none() {
            let holds = self.condition.and_then(|condition| condition.holds(&|at| values.get(at), &one.matched));
            if holds != Some(true) {
                return Ok(Next::Row);
            }
        }
        if self.plan.calls.is_empty() {
            let is_shown = |reference: &usize| *reference < self.plan.shown && !values[*reference].is_null();
            if !lookup.is_of_table && !set.iter().any(is_shown) {
                return Ok(Next::Row);
            }
            return self.raw_row(one, lookup, values, time, usage);
        }
        for &reference in set {
            for &at in &self.calls_of[reference] {
                let range = self.ranges[at];
                let value = &values[reference];
                let is_in_range = lookup.is_of_table || (range.min..=range.max).contains(&time);
                if value.is_null() || !is_in_range {
                    continue;
                }
                let auxiliary = if self.plan.has_auxiliary { Some(lookup.shown(values)) } else { None };
                let size = auxiliary.as_ref().map_or(0, |values| values.len());
                let point = Point { time, order: one.order, value: value.clone(), auxiliary };
                match (&mut self.groups[one.group].calls[at], &self.plan.calls[at].aggregate) {
                    (Collected::Windows(windows), Some(aggregate)) => {
                        let start = self.dimensions.windows.start_in(&mut self.window, time);
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
        }
        Ok(Next::Row)
    }

    /// Keeps a row of a `SELECT` without functions.
    ///
    /// With a `LIMIT`, rows that the answer cannot show are dropped from time to time.
    fn raw_row(
        &mut self,
        one: &mut OneSeries,
        lookup: &Lookup,
        values: &[Value],
        time: i64,
        usage: &mut Usage<'_>,
    ) -> Result<Next, StatementError> {
        let shown = &values[..self.plan.shown];
        let group = &mut self.groups[one.group];
        group.rows.push(RawRow { time, order: one.order, values: lookup.shown(shown) });
        let limit = self.settings.limit;
        if limit.rows == 0 {
            usage.rows(1, shown.len())?;
            return Ok(Next::Row);
        }
        let count = limit.rows.saturating_add(limit.skip_rows);
        if group.rows.len() > count.saturating_mul(2).max(1_024) {
            group.sort(self.settings.is_descending);
            group.rows.truncate(count);
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
        (Cast::Integer | Cast::Unsigned, Value::Float(value)) => Value::Integer(*value as i64),
        (Cast::Float, Value::Integer(value)) => Value::Float(*value as f64),
        (Cast::Text, Value::Text(_)) | (Cast::Boolean, Value::Boolean(_)) => value.clone(),
        (Cast::Text | Cast::Boolean, _) => Value::Null,
        _ => value.clone(),
    }
}
