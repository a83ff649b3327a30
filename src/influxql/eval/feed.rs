//! Feeds the rows of the sources into the groups of the answer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::super::ast::{Cast, Fill, Limit};
use super::super::error::StatementError;
use super::super::plan::{Aggregate, Call, Condition, Dimensions, Plan, Schema};
use super::super::source::{Next, Request, Row, Series};
use super::super::time::TimeRange;
use super::super::value::Value;
use super::Evaluator;
use super::group::{Collected, Group, RawRow};
use super::reduce::{Point, Reducer};
use super::select::{Input, Table, range_of_call};
use super::usage::Usage;

pub(super) const NS_PER_MS: i64 = 1_000_000;

/// As many comparisons of a condition count as one value against the limit of points.
const COMPARISONS_PER_VALUE: usize = 16;

/// The work of so many comparisons, in values.
pub(super) const fn work(comparisons: usize) -> usize {
    comparisons / COMPARISONS_PER_VALUE
}

/// The memory of a group or a series beside its names and values, in bytes: its entries in maps and lists.
const GROUP_BYTES: usize = 256;
const SERIES_BYTES: usize = 128;

/// The memory of a key or a value that a group has, and of a text beside its characters.
const TAG_BYTES: usize = 3 * size_of::<Arc<str>>();
const TEXT_BYTES: usize = 32;

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
    condition: Option<&'p Condition>,
    pub(super) dimensions: &'p Dimensions,
    pub(super) schema: &'p Schema,
    pub(super) settings: Settings,
    /// The range of each call.
    pub(super) ranges: Vec<TimeRange>,
    pub(super) groups: Vec<Group>,
    index: HashMap<(Arc<str>, Vec<Arc<str>>), usize>,
    /// The keys of the tags of groups, and the value of a tag that a series does not have.
    keys: Vec<Arc<str>>,
    absent: Arc<str>,
    series: u32,
    /// The work on a row, in values, beside reading it.
    work_per_row: usize,
}

/// A series of a source, ready to be fed.
pub(super) struct Prepared {
    pub(super) group: usize,
    pub(super) order: u32,
    /// The values of the references: those of tags are set, those of fields are set for each row.
    values: Vec<Value>,
    /// Whether the condition holds for all rows, or for none, or depends on the row.
    pub(super) holds: Option<bool>,
    /// How many rows of the series the answer may show.
    rows: usize,
}

/// The series of a measurement that a `SELECT` reads.
pub(super) struct Known<'p, 's> {
    pub(super) fields: Vec<&'p str>,
    pub(super) lookup: Lookup,
    pub(super) series: Vec<&'s Series>,
    /// In the order of `series`.
    pub(super) prepared: Vec<Prepared>,
}

/// How the references of a plan are found in a source.
pub(super) struct Lookup {
    /// The place of each reference among the fields of a row; `None`: it is a tag, or unknown.
    pub(super) field: Vec<Option<usize>>,
    /// Whether the source is a subquery. Its rows count even without a shown field, and whatever their time.
    is_of_table: bool,
}

impl Lookup {
    /// The values as columns show them: a tag that a measurement's series does not have is null, not empty.
    fn shown(&self, values: &[Value]) -> Box<[Value]> {
        let shown = |value: &Value| match value {
            Value::Text(text) if text.is_empty() && !self.is_of_table => Value::Null,
            value => value.clone(),
        };
        values.iter().map(shown).collect()
    }
}

impl<'p> Feed<'p> {
    pub(super) fn new(
        plan: &'p Plan,
        condition: Option<&'p Condition>,
        dimensions: &'p Dimensions,
        schema: &'p Schema,
        settings: Settings,
    ) -> Self {
        let Settings { range, is_descending, .. } = settings;
        let of_call = |call: &Call| range_of_call(call.transform, dimensions, range, is_descending);
        let ranges = plan.calls.iter().map(of_call).collect();
        let (groups, index) = (Vec::new(), HashMap::new());
        let work_per_row = plan.calls.len() + work(condition.map_or(0, Condition::size));
        let (keys, absent) = (dimensions.tags.iter().map(|key| Arc::from(&**key)).collect(), Arc::from(""));
        Self {
            plan,
            condition,
            dimensions,
            schema,
            settings,
            ranges,
            groups,
            index,
            keys,
            absent,
            series: 0,
            work_per_row,
        }
    }

    /// Feeds one source.
    pub(super) fn input(&mut self, evaluator: &mut Evaluator<'_>, input: &Input) -> Result<(), StatementError> {
        match input {
            Input::Measurement(name, series) => self.measurement(evaluator, name, series),
            Input::Table(table) => self.table(evaluator, table),
        }
    }

    /// Finds the fields and the groups of the series of a measurement.
    pub(super) fn known<'s>(
        &mut self,
        evaluator: &mut Evaluator<'_>,
        name: &Arc<str>,
        series: &'s [Series],
    ) -> Result<Known<'p, 's>, StatementError> {
        let known: HashSet<&str> = series.iter().flat_map(|series| &series.fields).map(|field| &**field).collect();
        let (mut fields, mut places): (Vec<&'p str>, HashMap<&str, usize>) = (Vec::new(), HashMap::new());
        let mut field = Vec::new();
        for (reference, cast) in &self.plan.references {
            let place = if *cast == Some(Cast::Tag) || !known.contains(&**reference) {
                None
            } else {
                Some(*places.entry(reference).or_insert_with(|| {
                    fields.push(reference);
                    fields.len() - 1
                }))
            };
            field.push(place);
        }
        let lookup = Lookup { field, is_of_table: false };
        let shown: Vec<&str> = (0..self.plan.shown).filter_map(|at| Some(fields[lookup.field[at]?])).collect();
        let (mut wanted, mut prepared) = (Vec::new(), Vec::new());
        let mut groups_of_measurement = Vec::new();
        for series in series {
            self.charge_series(evaluator)?;
            if !shown.iter().any(|field| series.field(field).is_some()) {
                continue;
            }
            let absent = Arc::clone(&self.absent);
            let tag = |key: &str| match series.tag(key) {
                "" => Value::Text(Arc::clone(&absent)),
                value => Value::Text(value.into()),
            };
            if let Some(one) = self.prepare(&mut evaluator.usage, name, &lookup, tag)? {
                wanted.push(series);
                groups_of_measurement.push(one.group);
                prepared.push(one);
            }
        }
        self.limit_series(groups_of_measurement, &mut prepared, &mut wanted);
        Ok(Known { fields, lookup, series: wanted, prepared })
    }

    /// Counts the work of finding the group of a series.
    fn charge_series(&self, evaluator: &mut Evaluator<'_>) -> Result<(), StatementError> {
        let comparisons = self.condition.map_or(0, Condition::size) + self.keys.len() + self.plan.references.len();
        evaluator.usage.points(work(comparisons))?;
        evaluator.source.check()
    }

    fn measurement(
        &mut self,
        evaluator: &mut Evaluator<'_>,
        name: &Arc<str>,
        series: &[Series],
    ) -> Result<(), StatementError> {
        let Known { fields, lookup, series: wanted, mut prepared } = self.known(evaluator, name, series)?;
        if wanted.is_empty() {
            return Ok(());
        }
        self.check_buckets(evaluator)?;
        let request = Request {
            measurement: name,
            series: &wanted,
            fields: &fields,
            range_ms: self.range_ms(),
            newest: self.newest(&lookup, &prepared),
            is_beside_stats: false,
            needs_ends: self.plan.calls.iter().any(|call| call.aggregate.as_ref().is_some_and(Aggregate::is_end)),
        };
        let ranges = self.hours(&prepared, &request.range_ms);
        let Some((before, hours, after)) = ranges else {
            return self.readings(evaluator, &request, &lookup, &mut prepared);
        };
        for range_ms in [before, after] {
            if !range_ms.is_empty() {
                self.readings(
                    evaluator,
                    &Request { range_ms, is_beside_stats: true, ..request.clone() },
                    &lookup,
                    &mut prepared,
                )?;
            }
        }
        let Evaluator { source, usage, .. } = evaluator;
        let work_per_row = self.work_per_row;
        source.hours(&Request { range_ms: hours, ..request.clone() }, &mut |stats| {
            usage.points(work_per_row.max(1))?;
            let one = &prepared[stats.series];
            self.hour(one, &lookup, &stats, usage)
        })
    }

    /// The number of rows at the end of each series that a descending `SELECT` without functions needs.
    /// `None`: it needs all.
    fn newest(&self, lookup: &Lookup, prepared: &[Prepared]) -> Option<usize> {
        let Settings { limit, is_descending, .. } = self.settings;
        let is_limited = self.plan.calls.is_empty() && is_descending && limit.rows > 0;
        let has_shown_fields_only = lookup.field[self.plan.shown..].iter().all(Option::is_none);
        if !is_limited || !has_shown_fields_only || prepared.iter().any(|one| one.holds != Some(true)) {
            return None;
        }
        usize::try_from(limit.rows.saturating_add(limit.skip_rows)).ok()
    }

    pub(super) fn readings(
        &mut self,
        evaluator: &mut Evaluator<'_>,
        request: &Request<'_>,
        lookup: &Lookup,
        prepared: &mut [Prepared],
    ) -> Result<(), StatementError> {
        let Evaluator { source, usage, .. } = evaluator;
        let work_per_row = self.work_per_row;
        let mut reader = |row: Row<'_>| {
            usage.points(row.values.len().max(work_per_row))?;
            let one = &mut prepared[row.series];
            for (place, value) in lookup.field.iter().zip(&mut one.values) {
                if let Some(place) = place {
                    *value = row.values[*place].map_or(Value::Null, Value::Float);
                }
            }
            self.row(one, lookup, row.ts_ms.saturating_mul(NS_PER_MS), usage)
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
        let usage = &mut evaluator.usage;
        for (one, series) in prepared.iter_mut().zip(series_of) {
            for (time, values) in &series.rows {
                usage.points(values.len().max(work_per_row))?;
                for (place, value) in lookup.field.iter().zip(&mut one.values) {
                    if let Some(place) = place {
                        *value = values[*place].clone();
                    }
                }
                self.row(one, &lookup, *time, usage)?;
            }
        }
        Ok(())
    }

    /// Finds the group of a series and its constant values. `None`: the condition holds for none of its rows.
    fn prepare(
        &mut self,
        usage: &mut Usage<'_>,
        name: &Arc<str>,
        lookup: &Lookup,
        tag: impl Fn(&str) -> Value,
    ) -> Result<Option<Prepared>, StatementError> {
        let references = self.plan.references.iter().zip(&lookup.field);
        let values: Vec<_> = references
            .map(|((name, cast), field)| {
                let is_tag = field.is_none() && cast.is_none_or(|cast| cast == Cast::Tag);
                if is_tag { tag(name) } else { Value::Null }
            })
            .collect();
        let known = |at: usize| if lookup.field[at].is_some() { None } else { values.get(at) };
        let holds = self.condition.map_or(Some(true), |condition| condition.holds(&known));
        if holds == Some(false) {
            return Ok(None);
        }
        let of_value = |value: &Value| if let Value::Text(text) = value { bytes_of(text) } else { 0 };
        let texts: usize = values.iter().map(of_value).sum();
        usage.memory(SERIES_BYTES + values.len() * size_of::<Value>() + texts)?;
        let text = |value: Value| if let Value::Text(text) = value { text } else { Arc::clone(&self.absent) };
        let tags: Vec<_> = self.keys.iter().map(|key| text(tag(key))).collect();
        let of_tags: usize = tags.iter().map(|value| TAG_BYTES + bytes_of(value)).sum();
        let groups = &mut self.groups;
        let (plan, keys) = (self.plan, &self.keys);
        let next = groups.len();
        let group = *self.index.entry((Arc::clone(name), tags)).or_insert_with_key(|(name, tags)| {
            let tags = keys.iter().cloned().zip(tags.iter().cloned()).collect();
            groups.push(Group::new(Arc::clone(name), tags, plan));
            next
        });
        if group == next {
            usage.memory(GROUP_BYTES + of_tags + plan.calls.len() * size_of::<Collected>())?;
        }
        self.series += 1;
        Ok(Some(Prepared { group, order: self.series, values, holds, rows: 0 }))
    }

    /// Drops the series that `SLIMIT` and `SOFFSET` leave out of one source.
    fn limit_series<T>(&self, mut groups: Vec<usize>, prepared: &mut Vec<Prepared>, series: &mut Vec<T>) {
        let limit = self.settings.limit;
        if limit.series == 0 && limit.skip_series == 0 {
            return;
        }
        groups.sort_unstable();
        groups.dedup();
        groups.sort_by_cached_key(|group| (self.groups[*group].key_of_present_tags(), *group));
        let skipped = usize::try_from(limit.skip_series).unwrap_or(usize::MAX);
        let count = usize::try_from(limit.series).unwrap_or(usize::MAX); // none without SLIMIT, as in InfluxDB
        let kept: HashSet<_> = groups.into_iter().skip(skipped).take(count).collect();
        let mut is_kept = prepared.iter().map(|one| kept.contains(&one.group)).collect::<Vec<_>>().into_iter();
        series.retain(|_| is_kept.next().unwrap_or(false));
        prepared.retain(|one| kept.contains(&one.group));
    }

    /// Feeds a row whose values are set.
    fn row(
        &mut self,
        one: &mut Prepared,
        lookup: &Lookup,
        time: i64,
        usage: &mut Usage<'_>,
    ) -> Result<Next, StatementError> {
        if one.holds.is_none() {
            let holds = self.condition.and_then(|condition| condition.holds(&|at| one.values.get(at)));
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
        one: &mut Prepared,
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

/// The memory of a text. Empty ones are shared.
const fn bytes_of(text: &str) -> usize {
    if text.is_empty() { 0 } else { TEXT_BYTES + text.len() }
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
