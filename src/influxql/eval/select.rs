//! `SELECT`: from its sources to its series.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::tz::TimeZone;

use super::super::ast::{Fill, From, Measurement, MeasurementName, Select};
use super::super::error::StatementError;
use super::super::plan::{Condition, Dimensions, Plan, Schema, Transform, Type, has_wildcard, names_of, wanted_tags};
use super::super::source::{Series, Wanted};
use super::super::time::{TimeRange, split};
use super::super::window::Windows;
use super::feed::{Feed, Settings};
use super::{Evaluator, OutRow, OutSeries};

/// The name of the only retention policy.
pub(super) const RETENTION_POLICY: &str = "autogen";

/// The clauses that a subquery takes over from the `SELECT` around it.
pub(super) struct Outer {
    range: TimeRange,
    tags: BTreeSet<String>,
    /// For a subquery with functions and without windows of its own.
    windows: Option<Windows>,
    is_descending: bool,
    is_subquery: bool,
}

impl Outer {
    /// The clauses around a `SELECT` that is no subquery.
    pub(super) const fn of(select: &Select) -> Self {
        let is_descending = select.is_descending;
        Self { range: TimeRange::ALL, tags: BTreeSet::new(), windows: None, is_descending, is_subquery: false }
    }
}

/// A `SELECT` that is ready to be fed.
pub(super) struct Prepared {
    pub(super) plan: Plan,
    pub(super) condition: Option<Condition>,
    pub(super) dimensions: Dimensions,
    pub(super) schema: Schema,
    pub(super) settings: Settings,
    pub(super) inputs: Vec<Input>,
    /// The table without its series.
    pub(super) table: Table,
}

impl Prepared {
    /// Whether there can be no rows.
    pub(super) const fn is_empty(&self) -> bool {
        self.settings.range.is_empty() || self.plan.columns.is_empty()
    }

    pub(super) fn feed(&self) -> Feed<'_> {
        Feed::new(self)
    }
}

/// The rows of a `SELECT`.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) columns: Vec<String>,
    pub(super) types: Vec<Option<Type>>,
    /// The tags of `GROUP BY`.
    pub(super) tags: BTreeSet<String>,
    pub(super) series: Vec<TableSeries>,
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
    Table(Table),
}

impl Evaluator<'_> {
    /// Answers a `SELECT`.
    pub(super) fn select_series(&mut self, select: &Select) -> Result<Vec<OutSeries>, StatementError> {
        let outer = Outer::of(select);
        let table = self.select(select, &outer)?;
        self.out(table, select)
    }

    /// The series of an answer.
    pub(super) fn out(&self, table: Table, select: &Select) -> Result<Vec<OutSeries>, StatementError> {
        let rows: usize = table.series.iter().map(|series| series.rows.len()).sum();
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
        Ok(table.series.into_iter().map(out).collect())
    }

    fn select(&mut self, select: &Select, outer: &Outer) -> Result<Table, StatementError> {
        let prepared = self.prepare(select, outer)?;
        let series = self.series_of(&prepared)?;
        Ok(Table { series, ..prepared.table })
    }

    /// Feeds a `SELECT` with its sources.
    pub(super) fn series_of(&mut self, prepared: &Prepared) -> Result<Vec<TableSeries>, StatementError> {
        if prepared.is_empty() {
            return Ok(Vec::new());
        }
        let mut feed = prepared.feed();
        for input in &prepared.inputs {
            feed.input(self, input)?;
        }
        feed.finish(self)
    }

    /// Plans a `SELECT`, and reads its subqueries and its catalogue of series.
    pub(super) fn prepare(&mut self, select: &Select, outer: &Outer) -> Result<Prepared, StatementError> {
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
        dimensions.tags.extend(outer.tags.iter().cloned());
        let any_field = dimensions.has_wildcard();
        let fields = if any_field { None } else { names_of(&select.columns, condition.as_ref()) };
        let wanted = Wanted { tags: wanted_tags(condition.as_ref()), fields, range_ms: range.to_ms() };
        let is_descending = select.is_descending || outer.is_descending;
        let own_windows = Some(dimensions.windows.clone()).filter(|windows| windows.every_ns > 0);
        let inner = Outer {
            range,
            tags: dimensions.tags.clone(),
            windows: own_windows.or_else(|| outer.windows.clone()),
            is_descending,
            is_subquery: true,
        };
        let (inputs, schema) = self.inputs(select, any_field, &wanted, &inner)?;
        dimensions.resolve(&schema.tags);
        let mut plan = Plan::new(select, &schema, &dimensions)?;
        let types = select.columns.iter().map(|column| (column.alias.clone(), schema.type_of(&column.expr)));
        let types = types_of_columns(&plan, &schema, types.collect());
        let condition = match &condition {
            Some(condition) => Some(Condition::new(condition, &mut plan)?),
            None => None,
        };
        let columns: Vec<_> = plan.columns.iter().map(|(name, _)| name.clone()).collect();
        let table = Table { columns, types, tags: dimensions.tags.clone(), series: Vec::new() };
        if let Some(windows) = &outer.windows
            && dimensions.windows.every_ns == 0
            && !plan.calls.is_empty()
        {
            dimensions.windows = windows.clone();
        }
        if dimensions.windows.every_ns > 0 && !range.has_max() {
            range.max = now_ns;
        }
        // A subquery passes no windows without points on, unless it fills them with values.
        let fill = if outer.is_subquery && select.fill == Fill::Null { Fill::None } else { select.fill };
        let settings = Settings { limit: select.limit, fill, range, is_descending };
        Ok(Prepared { plan, condition, dimensions, schema, settings, inputs, table })
    }

    /// Reads the sources of a `SELECT`: the rows of subqueries, the series of measurements. Subqueries take
    /// over `inner`.
    fn inputs(
        &mut self,
        select: &Select,
        groups_by_wildcard: bool,
        wanted: &Wanted<'_>,
        inner: &Outer,
    ) -> Result<(Vec<Input>, Schema), StatementError> {
        let mut inputs = Vec::new();
        let mut measurements = BTreeSet::new();
        for from in &select.from {
            match from {
                From::Measurement(measurement) => measurements.extend(self.names(measurement)?),
                From::Subquery(subquery) => inputs.push(Input::Table(self.select(subquery, inner)?)),
            }
        }
        let mut schema = schema_of_tables(&inputs);
        let fills_absent = select.columns.len() > 1 && matches!(select.fill, Fill::Number(_));
        let needs_all = groups_by_wildcard || fills_absent;
        let needs_all = needs_all || select.columns.iter().any(|column| has_wildcard(&column.expr));
        for name in measurements {
            let series = self.source.series(&name, wanted)?;
            schema.add(&series);
            if needs_all {
                let (fields, tags) = self.source.schema(&name, wanted)?;
                schema.fields.extend(fields.into_iter().map(|field| (field, Type::Float)));
                schema.tags.extend(tags);
            }
            self.usage.series(series.len())?;
            inputs.push(Input::Measurement(name.into(), series));
        }
        Ok((inputs, schema))
    }

    /// The names of the measurements that a `FROM` means.
    pub(super) fn names(&mut self, measurement: &Measurement) -> Result<Vec<String>, StatementError> {
        self.check_database(measurement.database.as_deref())?;
        if let Some(policy) = measurement.retention_policy.as_deref().filter(|policy| *policy != RETENTION_POLICY) {
            return Err(format!("retention policy not found: {policy}").into());
        }
        match &measurement.name {
            MeasurementName::Name(name) => Ok(vec![name.clone()]),
            MeasurementName::Regex(pattern) => {
                let mut names = self.source.measurements()?;
                let mut checked = Ok(());
                names.retain(|name| {
                    checked = checked.clone().and_then(|()| self.source.check());
                    checked.is_ok() && pattern.matches(name)
                });
                checked.map(|()| names)
            }
        }
    }

    pub(super) fn check_database(&self, database: Option<&str>) -> Result<(), StatementError> {
        match database {
            Some(database) if !self.options.databases.iter().any(|known| known == database) => {
                Err(format!("database not found: {database}").into())
            }
            _ => Ok(()),
        }
    }
}

/// The range of a call: a transform of windows also needs the length of a window before the
/// first one.
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
    if range.has_min() { TimeRange { min: range.min.saturating_sub(every), ..range } } else { range }
}

fn schema_of_tables(inputs: &[Input]) -> Schema {
    let mut schema = Schema::default();
    for input in inputs {
        let Input::Table(table) = input else { continue };
        for (name, kind) in table.columns.iter().zip(&table.types) {
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

/// The types of the columns of a plan: those of the written columns by name, and those of names.
fn types_of_columns(plan: &Plan, schema: &Schema, written: Vec<(Option<String>, Option<Type>)>) -> Vec<Option<Type>> {
    if written.len() == plan.columns.len() {
        return written.into_iter().map(|(_, kind)| kind).collect();
    }
    let by_name: BTreeMap<_, _> = written.into_iter().filter_map(|(name, kind)| Some((name?, kind))).collect();
    let of_column = |(name, _): &(String, _)| {
        by_name.get(name).copied().flatten().or_else(|| {
            let of_tag = schema.tags.contains(name).then_some(Type::Tag);
            schema.fields.get(name).copied().or(of_tag)
        })
    };
    plan.columns.iter().map(of_column).collect()
}
