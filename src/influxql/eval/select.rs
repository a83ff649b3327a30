//! `SELECT`: from its sources to its series.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use jiff::tz::TimeZone;

use super::super::ast::{Expr, Fill, From, Measurement, MeasurementName, Select};
use super::super::error::StatementError;
use super::super::plan::{
    Condition, Dimensions, Plan, Schema, TagFilter, Transform, Type, has_wildcard, names_of, wanted_tags,
};
use super::super::source::{Found, Measurements, Series, Wanted};
use super::super::time::{MIN_NS, TimeRange, split};
use super::super::window::Windows;
use super::feed::Settings;
use super::{Evaluator, OutRow, OutSeries};

/// The name of the only retention policy.
pub(super) const RETENTION_POLICY: &str = "autogen";

/// How many lists of a plan repeat the name of a column or of a tag, such as its table and its schema.
const LISTS: usize = 4;

/// The memory of a name in a list beside its text, in bytes.
const NAME_BYTES: usize = 64;

/// The clauses, except the tags, that a subquery inherits from the `SELECT` around it.
struct Outer {
    range: TimeRange,
    /// The windows of a subquery that has functions, but no windows of its own.
    windows: Option<Windows>,
    is_descending: bool,
    is_subquery: bool,
    /// Whether a number fills absent values of several fields. It does so only for fields that are known.
    fills_absent: bool,
}

/// A `SELECT` before its series are known.
struct Outline<'q> {
    select: &'q Select,
    /// The inherited clauses.
    outer: Outer,
    range: TimeRange,
    condition: Option<Expr>,
    dimensions: Dimensions,
    subqueries: Vec<Outline<'q>>,
    /// The index of the `SELECT` in the list of [`Wanted`].
    ///
    /// `None`: it reads no measurement.
    wanted: Option<usize>,
}

/// A `SELECT` that is ready to be fed.
pub(super) struct Prepared {
    pub(super) plan: Plan,
    pub(super) condition: Option<Condition>,
    pub(super) dimensions: Dimensions,
    pub(super) schema: Schema,
    pub(super) settings: Settings,
    pub(super) inputs: Vec<Input>,
    pub(super) table: Table,
}

impl Prepared {
    /// Whether there can be no rows: the range is empty, or the data has none of the columns.
    pub(super) fn is_empty(&self) -> bool {
        self.settings.range.is_empty() || self.plan.columns.is_empty() || !self.plan.is_of(&self.schema)
    }
}

/// The columns and the tag keys of the series that a `SELECT` makes.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) columns: Vec<String>,
    /// The tag keys of `GROUP BY`.
    pub(super) tags: BTreeSet<String>,
}

/// One series of a table.
#[derive(Debug)]
pub(super) struct TableSeries {
    pub(super) name: Arc<str>,
    pub(super) tags: Vec<(Arc<str>, Arc<str>)>,
    pub(super) rows: Vec<OutRow>,
}

/// One of the sources of a `SELECT`.
pub(super) enum Input {
    Measurement(Arc<str>, Vec<Series>),
    Subquery(Box<Prepared>),
}

impl Evaluator<'_> {
    /// Answers a `SELECT`.
    pub(super) fn select_series(&mut self, select: &Select) -> Result<Vec<OutSeries>, StatementError> {
        let prepared = self.prepare(select)?;
        let series = self.series_of(&prepared)?;
        self.out(prepared.table, series, select)
    }

    /// Converts series to those of the answer, and checks the number of their rows.
    pub(super) fn out(
        &self,
        table: Table,
        series: Vec<TableSeries>,
        select: &Select,
    ) -> Result<Vec<OutSeries>, StatementError> {
        let rows: usize = series.iter().map(|series| series.rows.len()).sum();
        let max = self.options.limits.max_rows;
        if rows > max {
            return Err(format!(
                "the answer has {rows} rows, more than {max} (query.max_points); add a LIMIT or a shorter range"
            )
            .into());
        }
        let names = std::iter::once("time".to_owned()).chain(table.columns);
        let columns: Arc<[String]> = names.collect();
        let out = |series: TableSeries| OutSeries {
            name: series.name,
            tags: series.tags,
            columns: Arc::clone(&columns),
            has_time: true,
            zone: select.zone.clone(),
            rows: series.rows,
            is_partial: false,
        };
        Ok(series.into_iter().map(out).collect())
    }

    /// Asks for the series of a `SELECT` and its subqueries, and plans all of them.
    pub(super) fn prepare(&mut self, select: &Select) -> Result<Prepared, StatementError> {
        let (range, is_descending) = (TimeRange::ALL, select.is_descending);
        let outer = Outer { range, windows: None, is_descending, is_subquery: false, fills_absent: false };
        let mut wanted = Vec::new();
        let outline = self.outline(select, outer, &BTreeSet::new(), &mut wanted)?;
        let mut found = self.source.series(&wanted)?;
        self.plan(outline, &mut found)
    }

    /// Adds the series that a `SELECT` and its subqueries need to `wanted`.
    ///
    /// `tags` are the tags by which the `SELECT`s around it group.
    fn outline<'q>(
        &mut self,
        select: &'q Select,
        outer: Outer,
        tags: &BTreeSet<String>,
        wanted: &mut Vec<Wanted>,
    ) -> Result<Outline<'q>, StatementError> {
        if select.has_into {
            return Err("SELECT INTO is not supported".into());
        }
        let now_ns = self.options.now_ns;
        let zone = select.zone.clone().unwrap_or(TimeZone::UTC);
        let (condition, range) = match &select.condition {
            Some(condition) => split(condition, now_ns, &zone)?,
            None => (None, TimeRange::ALL),
        };
        let mut range = range.intersect(outer.range);
        let mut dimensions = Dimensions::new(&select.dimensions, select.zone.as_ref(), now_ns)?;
        // Windows end at now. Subqueries get the range, because their rows are not compared with it again.
        if dimensions.windows.every_ns > 0 && !range.has_max() {
            range.max = now_ns;
        }
        self.usage.memory(bytes_of(tags.iter()))?;
        dimensions.tags.extend(tags.iter().cloned());
        let own_windows = Some(dimensions.windows.clone()).filter(|windows| windows.every_ns > 0);
        let shown = names_of(&select.columns, None);
        let has_several_names = shown.is_none_or(|names| names.len() > 1);
        let fills_absent = outer.fills_absent || (has_several_names && matches!(select.fill, Fill::Number(_)));
        let (mut measurements, mut subqueries) = (Measurements::default(), Vec::new());
        for from in &select.from {
            match from {
                From::Measurement(measurement) => add_measurement(measurement, &mut measurements)?,
                From::Subquery(subquery) => {
                    let inner = Outer {
                        range,
                        windows: own_windows.clone().or_else(|| outer.windows.clone()),
                        is_descending: select.is_descending || outer.is_descending,
                        is_subquery: true,
                        fills_absent,
                    };
                    subqueries.push(self.outline(subquery, inner, &dimensions.tags, wanted)?);
                }
            }
        }
        let has_measurements = subqueries.len() < select.from.len();
        if has_measurements {
            let any_field = dimensions.has_wildcard();
            let fields = if any_field { None } else { names_of(&select.columns, condition.as_ref()) };
            let has_wildcard = select.columns.iter().any(|column| has_wildcard(&column.expr));
            // A subquery of several fields has a row even if the series with one of the fields have none.
            let needs_all = outer.is_subquery && has_several_names;
            let counts_series = select.limit.series > 0 || select.limit.skip_series > 0;
            let windows = own_windows.as_ref().or(outer.windows.as_ref());
            // SLIMIT and SOFFSET count series without rows too.
            wanted.push(Wanted {
                measurements,
                tags: wanted_tags(condition.as_ref()),
                filter: if needs_all { None } else { TagFilter::new(condition.as_ref(), counts_series) },
                fields: fields.map(|names| names.into_iter().map(str::to_owned).collect()),
                range_ms: range.to_ms(),
                within_ms: (!needs_all && !counts_series).then(|| range_of_rows(range, windows)),
                needs_schema: any_field || fills_absent || has_wildcard,
            });
        }
        let wanted = has_measurements.then(|| wanted.len() - 1);
        Ok(Outline { select, outer, range, condition, dimensions, subqueries, wanted })
    }

    /// Plans a `SELECT` over the series that were found for it.
    fn plan(
        &mut self,
        outline: Outline<'_>,
        found: &mut [BTreeMap<Arc<str>, Found>],
    ) -> Result<Prepared, StatementError> {
        let Outline { select, outer, range, condition, mut dimensions, subqueries, wanted } = outline;
        self.source.check()?;
        let mut inputs = Vec::new();
        for subquery in subqueries {
            inputs.push(Input::Subquery(Box::new(self.plan(subquery, found)?)));
        }
        let mut schema = schema_of_subqueries(&inputs);
        for (name, found) in wanted.map(|at| std::mem::take(&mut found[at])).unwrap_or_default() {
            schema.add(&found.series);
            schema.fields.extend(found.fields.iter().map(|field| (field.to_string(), Type::Float)));
            schema.tags.extend(found.tags.iter().map(ToString::to_string));
            self.usage.series(found.series.len())?;
            inputs.push(Input::Measurement(name, found.series));
        }
        dimensions.resolve(&schema);
        let mut plan = Plan::new(select, &schema, &dimensions)?;
        // Only wildcards make more names than the text of the query has.
        if dimensions.has_wildcard() {
            self.usage.memory(bytes_of(dimensions.tags.iter()))?;
        }
        if plan.columns.len() > select.columns.len() {
            self.usage.memory(bytes_of(plan.columns.iter().map(|(name, _)| name)))?;
        }
        if let Some(condition) = &condition {
            schema.check_condition(condition)?;
        }
        let condition = condition.as_ref().map(|condition| Condition::new(condition, &mut plan)).transpose()?;
        let columns: Vec<_> = plan.columns.iter().map(|(name, _)| name.clone()).collect();
        let table = Table { columns, tags: dimensions.tags.clone() };
        if let Some(windows) = &outer.windows
            && dimensions.windows.every_ns == 0
            && !plan.calls.is_empty()
        {
            dimensions.windows = windows.clone();
        }
        // A subquery passes on a window without points only if `fill` gives it a value.
        let fill = if outer.is_subquery && select.fill == Fill::Null { Fill::None } else { select.fill };
        let is_descending = select.is_descending || outer.is_descending;
        let settings = Settings { limit: select.limit, fill, range, is_descending };
        Ok(Prepared { plan, condition, dimensions, schema, settings, inputs, table })
    }
}

/// Adds the measurements that a part of a `FROM` means.
pub(super) fn add_measurement(
    measurement: &Measurement,
    measurements: &mut Measurements,
) -> Result<(), StatementError> {
    if let Some(policy) = measurement.retention_policy.as_deref().filter(|policy| *policy != RETENTION_POLICY) {
        return Err(format!("retention policy not found: {policy}").into());
    }
    match &measurement.name {
        MeasurementName::Name(name) => _ = measurements.names.insert(name.clone()),
        MeasurementName::Regex(pattern) => measurements.patterns.push(pattern.clone()),
    }
    Ok(())
}

/// Returns the range that a call needs.
///
/// A transform of windows, such as `derivative(mean(x))`, also needs the window before the first one. In a
/// descending `SELECT`, it needs the window after the last one instead. Only `cumulative_sum` needs neither.
pub(super) fn range_of_call(
    transform: Option<Transform>,
    dimensions: &Dimensions,
    range: TimeRange,
    is_descending: bool,
) -> TimeRange {
    let every = dimensions.windows.every_ns;
    if every == 0 || matches!(transform, None | Some(Transform::CumulativeSum)) {
        return range;
    }
    if is_descending {
        return if range.has_max() { TimeRange { max: range.max.saturating_add(every), ..range } } else { range };
    }
    // A range that had a lower bound keeps one.
    let min = range.min.saturating_sub(every).max(MIN_NS + 1);
    if range.has_min() { TimeRange { min, ..range } } else { range }
}

/// Returns a range that has all rows which a `SELECT` may need, in milliseconds, half-open.
///
/// It is longer than `range` by a window on both sides, which transforms of windows need: see
/// [`range_of_call`].
fn range_of_rows(range: TimeRange, windows: Option<&Windows>) -> Range<i64> {
    let every = windows.map_or(0, |windows| windows.every_ns);
    let min = range.min.saturating_sub(every).max(MIN_NS);
    let max = if range.has_max() { range.max.saturating_add(every) } else { range.max };
    TimeRange { min, max }.to_ms()
}

/// The memory of names in the lists of a plan.
fn bytes_of<'n>(names: impl Iterator<Item = &'n String>) -> usize {
    names.map(|name| LISTS * (NAME_BYTES + name.len())).sum()
}

fn schema_of_subqueries(inputs: &[Input]) -> Schema {
    let mut schema = Schema::default();
    for input in inputs {
        let Input::Subquery(prepared) = input else { continue };
        let Prepared { plan, table, .. } = &**prepared;
        if schema.aliases.others.is_empty() {
            schema.aliases = Arc::clone(&prepared.schema.aliases);
        }
        for (name, kind) in table.columns.iter().zip(&plan.types) {
            match kind {
                Some(Type::Tag) => _ = schema.tags.insert(name.clone()),
                Some(kind) => _ = schema.fields.insert(name.clone(), *kind),
                None => {}
            }
        }
        schema.tags.extend(table.tags.iter().cloned());
    }
    schema
}
