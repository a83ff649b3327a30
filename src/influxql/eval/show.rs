//! `SHOW` statements, answered from the series that the source lists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::tz::TimeZone;

use super::super::ast::{Expr, Keys, Show, Shown};
use super::super::error::StatementError;
use super::super::plan::{Condition, Plan, TagFilter, wanted_tags};
use super::super::source::{Found, Measurements, Series, Wanted};
use super::super::text::{escaped, tags_text};
use super::super::time::{TimeRange, split};
use super::super::value::Value;
use super::select::{RETENTION_POLICY, add_measurement};
use super::{Evaluator, OutRow, OutSeries};

impl Evaluator<'_> {
    /// Answers a `SHOW`.
    pub(super) fn show(&mut self, show: &Show) -> Result<Vec<OutSeries>, StatementError> {
        match &show.shown {
            Shown::Databases => {
                let rows = self.options.databases.iter().map(|name| row([text(name)])).collect();
                Ok(vec![table("databases", &["name"], rows)])
            }
            Shown::RetentionPolicies => {
                let columns = ["name", "duration", "shardGroupDuration", "replicaN", "default"];
                let policy =
                    [text(RETENTION_POLICY), text("0s"), text("168h0m0s"), Value::Integer(1), Value::Boolean(true)];
                Ok(vec![table("", &columns, vec![row(policy)])])
            }
            Shown::Measurements => {
                if let Some(condition) = &show.condition
                    && split(condition, self.options.now_ns, &TimeZone::UTC)?.1 != TimeRange::ALL
                {
                    return Err("SHOW MEASUREMENTS doesn't support time in WHERE clause".into());
                }
                let names = self.matching(show)?.into_iter().map(|(name, _)| row([text(&name)]));
                let rows: Vec<_> = show.limit.of_rows(names).collect();
                Ok(if rows.is_empty() { Vec::new() } else { vec![table("measurements", &["name"], rows)] })
            }
            Shown::TagKeys => self.per_measurement(show, &["tagKey"], |series| {
                let keys: BTreeSet<_> = series.iter().flat_map(|one| one.tags.iter().map(|(key, _)| key)).collect();
                keys.into_iter().map(|key| row([text(key)])).collect()
            }),
            Shown::FieldKeys => self.per_measurement(show, &["fieldKey", "fieldType"], |series| {
                fields(series).into_iter().map(|field| row([text(field), text("float")])).collect()
            }),
            Shown::TagValues(keys) => self.per_measurement(show, &["key", "value"], |series| {
                tag_values(series, keys).into_iter().map(|(key, value)| row([text(key), text(value)])).collect()
            }),
            Shown::Series => {
                let mut keys = Vec::new();
                for (name, series) in self.matching(show)? {
                    keys.extend(series.iter().map(|one| row([text(&key_of(&name, one))])));
                }
                let rows: Vec<_> = show.limit.of_rows(keys).collect();
                Ok(if rows.is_empty() { Vec::new() } else { vec![table("", &["key"], rows)] })
            }
            Shown::SeriesCardinality { is_exact } if !is_exact && show.from.is_empty() && show.condition.is_none() => {
                let count = self.matching(show)?.iter().map(|(_, series)| series.len()).sum();
                Ok(vec![counts("", "cardinality estimation", count)])
            }
            Shown::MeasurementCardinality { is_exact } => {
                let is_estimate = !is_exact && show.from.is_empty() && show.condition.is_none();
                let column = if is_estimate { "cardinality estimation" } else { "count" };
                Ok(vec![counts("", column, self.matching(show)?.len())])
            }
            Shown::SeriesCardinality { .. } => self.count_per_measurement(show, <[Series]>::len),
            Shown::TagKeyCardinality => self.count_per_measurement(show, |series| {
                series.iter().flat_map(|one| one.tags.iter().map(|(key, _)| key)).collect::<BTreeSet<_>>().len()
            }),
            Shown::TagValueCardinality(keys) => {
                self.count_per_measurement(show, |series| tag_values(series, keys).len())
            }
            Shown::FieldKeyCardinality => self.count_per_measurement(show, |series| fields(series).len()),
        }
    }

    fn per_measurement(
        &mut self,
        show: &Show,
        columns: &[&str],
        rows_of: impl Fn(&[Series]) -> Vec<OutRow>,
    ) -> Result<Vec<OutSeries>, StatementError> {
        let mut shown = Vec::new();
        for (name, series) in self.matching(show)? {
            let rows: Vec<_> = show.limit.of_rows(rows_of(&series)).collect();
            self.source.check()?;
            self.usage.rows(rows.len(), columns.len())?;
            if !rows.is_empty() {
                shown.push(table(&name, columns, rows));
            }
        }
        Ok(shown)
    }

    fn count_per_measurement(
        &mut self,
        show: &Show,
        count: impl Fn(&[Series]) -> usize,
    ) -> Result<Vec<OutSeries>, StatementError> {
        let found = self.matching(show)?.into_iter().map(|(name, series)| (name, count(&series)));
        Ok(found.filter(|(_, count)| *count > 0).map(|(name, count)| counts(&name, "count", count)).collect())
    }

    /// Returns the measurements of a `SHOW`, with the series that meet its condition.
    ///
    /// Measurements without such a series are left out.
    fn matching(&mut self, show: &Show) -> Result<Vec<(String, Vec<Series>)>, StatementError> {
        let condition = match &show.condition {
            Some(condition) => split(condition, self.options.now_ns, &TimeZone::UTC)?.0,
            None => None,
        };
        if let Some(condition) = &condition {
            check_tags(condition)?;
        }
        let mut measurements = Measurements { all: show.from.is_empty(), ..Measurements::default() };
        for measurement in &show.from {
            add_measurement(measurement, &mut measurements)?;
        }
        let mut plan = Plan::default();
        let compiled = condition.as_ref().map(|condition| Condition::new(condition, &mut plan)).transpose()?;
        let tags = wanted_tags(condition.as_ref());
        let range_ms = TimeRange::ALL.to_ms();
        let filter = TagFilter::new(condition.as_ref(), false);
        let wanted =
            Wanted { measurements, tags, filter, fields: None, range_ms, within_ms: None, needs_schema: false };
        let comparisons = compiled.as_ref().map_or(0, |condition| condition.size() + plan.references.len());
        let mut found = Vec::new();
        for (name, Found { mut series, .. }) in self.source.series(&[wanted])?.pop().unwrap_or_default() {
            self.usage.series(series.len())?;
            self.source.check()?;
            if let Some(condition) = &compiled {
                let mut fulfilling = Vec::new();
                for one in series {
                    self.usage.comparisons(comparisons)?;
                    self.source.check()?;
                    let tags: Vec<_> =
                        plan.references.iter().map(|(key, _)| Value::Text(one.tag(key).into())).collect();
                    if condition.holds(&|at| tags.get(at), &[]) == Some(true) {
                        fulfilling.push(one);
                    }
                }
                series = fulfilling;
            }
            if !series.is_empty() {
                found.push((name.to_string(), series));
            }
        }
        Ok(found)
    }
}

/// Checks that a condition compares only by equality or by regular expressions.
fn check_tags(condition: &Expr) -> Result<(), StatementError> {
    use super::super::ast::Operator::{Equal, Matches, MatchesNot, NotEqual};
    match condition {
        Expr::Logic(_, operands) => operands.iter().try_for_each(check_tags),
        Expr::Group(inner) => check_tags(inner),
        Expr::Binary(Equal | NotEqual | Matches | MatchesNot, ..) => Ok(()),
        _ => Err("invalid tag comparison operator".into()),
    }
}

fn fields(series: &[Series]) -> BTreeSet<&Arc<str>> {
    series.iter().flat_map(|one| &one.fields).collect()
}

/// Returns the tags with these keys, as key and value, each once.
///
/// A key that `WITH KEY =`, `WITH KEY IN` or a pattern names may be an alias of a tag. Then the tag is also
/// returned under this name.
fn tag_values<'s>(series: &'s [Series], keys: &'s Keys) -> BTreeSet<(&'s str, &'s str)> {
    let is_wanted = |key: &str| match keys {
        Keys::In(keys) => keys.contains(key),
        Keys::Not(other) => other != key,
        Keys::Matching(pattern) => pattern.matches(key),
        Keys::NotMatching(pattern) => !pattern.matches(key),
    };
    let mut known: BTreeMap<&str, bool> = BTreeMap::new();
    let tags = series.iter().flat_map(|one| one.tags.iter().map(|(key, value)| (&**key, &**value)));
    let mut found: BTreeSet<_> = tags.filter(|(key, _)| *known.entry(key).or_insert_with(|| is_wanted(key))).collect();
    let Some(aliases) = series.first().map(|one| &one.aliases) else { return found };
    let named: Vec<&String> = match keys {
        Keys::In(keys) => aliases.others.iter().filter(|other| keys.contains(*other)).collect(),
        Keys::Matching(pattern) => aliases.named_by(pattern).collect(),
        Keys::Not(_) | Keys::NotMatching(_) => Vec::new(),
    };
    for one in series {
        let values = named.iter().map(|key| (key.as_str(), one.tag(key)));
        found.extend(values.filter(|(_, value)| !value.is_empty()));
    }
    found
}

/// A series as line protocol writes it.
fn key_of(name: &str, series: &Series) -> String {
    let name = escaped(name, b", ");
    if series.tags.is_empty() { name } else { format!("{name},{}", tags_text(&series.tags)) }
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

fn row<const N: usize>(values: [Value; N]) -> OutRow {
    (0, Box::new(values))
}

fn table(name: &str, columns: &[&str], rows: Vec<OutRow>) -> OutSeries {
    let columns = columns.iter().map(|&column| column.to_owned()).collect();
    let (tags, zone) = (Vec::new(), None);
    OutSeries { name: name.into(), tags, columns, has_time: false, zone, rows, is_partial: false }
}

fn counts(name: &str, column: &str, count: usize) -> OutSeries {
    table(name, &[column], vec![row([Value::Integer(count as i64)])])
}
