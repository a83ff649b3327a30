//! The series that a `SELECT` reads: the group of each, and the values that its rows have in common.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::common::work;

use super::super::ast::Cast;
use super::super::error::StatementError;
use super::super::plan::{Condition, Reference};
use super::super::source::Series;
use super::super::value::Value;
use super::Evaluator;
use super::feed::Feed;
use super::group::{Collected, Group};
use super::usage::Usage;

/// The bytes of a group beside its names and values: entries in maps and lists.
const GROUP_BYTES: usize = 256;
/// The memory of a series beside its values, in bytes.
const SERIES_BYTES: usize = 128;

/// The memory of a tag in a group beside the text of its value, in bytes.
const TAG_BYTES: usize = 3 * size_of::<Arc<str>>();
/// The memory of a text beside its characters, in bytes.
const TEXT_BYTES: usize = 32;

/// The bit that marks the order of a series of a measurement.
///
/// The order of a series of a subquery lacks this bit. So at one instant, the rows of subqueries come first.
const OF_MEASUREMENT: u32 = 1 << 31;

/// A series of a source, ready to be fed.
pub(super) struct OneSeries {
    pub(super) group: usize,
    pub(super) order: u32,
    /// The values of its tags, each with the index of its `Reference` in the plan.
    ///
    /// All rows of the series have these values.
    constants: Vec<(usize, Value)>,
    /// Whether the condition holds for all rows. `None`: it depends on the row.
    pub(super) holds: Option<bool>,
    /// The results of the regular expressions, if they are known for all rows.
    pub(super) matched: Vec<Option<bool>>,
    /// With a `LIMIT`: how many rows of the series were kept.
    pub(super) rows: usize,
}

/// The series of a measurement that a `SELECT` reads.
pub(super) struct Known<'p, 's> {
    pub(super) fields: Vec<&'p str>,
    pub(super) series: Vec<&'s Series>,
    /// The same series in the same order, ready to be fed.
    pub(super) members: Members,
}

/// The series of one source, and the row that is being fed.
pub(super) struct Members {
    pub(super) lookup: Lookup,
    pub(super) series: Vec<OneSeries>,
    /// The values of the references in the row. Those of fields are null between rows.
    pub(super) values: Vec<Value>,
    /// The series whose tags are in `values`.
    current: Option<usize>,
}

impl Members {
    pub(super) fn new(lookup: Lookup, series: Vec<OneSeries>) -> Self {
        let values = vec![Value::Null; lookup.field.len()];
        Self { lookup, series, values, current: None }
    }

    /// Sets the values of the tags of the series at the index `at`.
    pub(super) fn enter(&mut self, at: usize) {
        if self.current == Some(at) {
            return;
        }
        if let Some(before) = self.current.replace(at) {
            for (reference, _) in &self.series[before].constants {
                self.values[*reference] = Value::Null;
            }
        }
        let constants = &self.series[at].constants;
        work::count(constants.len());
        for (reference, value) in constants {
            self.values[*reference] = value.clone();
        }
    }
}

/// Maps the references of a plan to the fields and tags of one source.
pub(super) struct Lookup {
    /// The index of each reference in the fields of a row.
    ///
    /// `None`: the reference is a tag, or unknown.
    pub(super) field: Vec<Option<usize>>,
    /// For each field of a row, the indexes of the references to the field.
    pub(super) references: Vec<Vec<usize>>,
    /// The references that are tags.
    tags: Vec<usize>,
    /// Whether the source is a subquery.
    ///
    /// A row of a subquery counts even if it lacks the shown fields, or is outside of the range of a call.
    pub(super) is_of_table: bool,
}

impl Lookup {
    /// `field` has the index of each of `references` in the fields of a row.
    pub(super) fn new(references: &[Reference], field: Vec<Option<usize>>, is_of_table: bool) -> Self {
        let fields = field.iter().flatten().max().map_or(0, |last| last + 1);
        let (mut of_field, mut tags) = (vec![Vec::new(); fields], Vec::new());
        for (at, ((_, cast), field)) in references.iter().zip(&field).enumerate() {
            match field {
                Some(field) => of_field[*field].push(at),
                None if cast.is_none_or(|cast| cast == Cast::Tag) => tags.push(at),
                None => {}
            }
        }
        work::count(references.len());
        Self { field, references: of_field, tags, is_of_table }
    }

    /// Returns the values as columns show them.
    ///
    /// An absent tag of a measurement is null, not empty.
    pub(super) fn shown(&self, values: &[Value]) -> Box<[Value]> {
        let shown = |value: &Value| match value {
            Value::Text(text) if text.is_empty() && !self.is_of_table => Value::Null,
            value => value.clone(),
        };
        work::count(values.len());
        values.iter().map(shown).collect()
    }
}

impl<'p> Feed<'p> {
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
        let lookup = Lookup::new(&self.plan.references, field, false);
        let shown: HashSet<&str> = (0..self.plan.shown).filter_map(|at| Some(fields[lookup.field[at]?])).collect();
        let (mut wanted, mut prepared) = (Vec::new(), Vec::new());
        let mut groups_of_measurement = Vec::new();
        for series in series {
            self.charge_series(&lookup, evaluator)?;
            let has_shown = if shown.len() < series.fields.len() {
                shown.iter().any(|field| series.field(field).is_some())
            } else {
                series.fields.iter().any(|field| shown.contains(&**field))
            };
            if !has_shown {
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
        Ok(Known { fields, series: wanted, members: Members::new(lookup, prepared) })
    }

    /// Counts the work of finding the group of a series.
    pub(super) fn charge_series(&self, lookup: &Lookup, evaluator: &mut Evaluator<'_>) -> Result<(), StatementError> {
        let comparisons = self.condition.map_or(0, Condition::size) + self.keys.len() + lookup.tags.len();
        evaluator.usage.comparisons(comparisons)?;
        evaluator.source.check()
    }

    /// Finds the group of a series and the values of its tags.
    ///
    /// `None`: the condition holds for none of its rows.
    pub(super) fn prepare(
        &mut self,
        usage: &mut Usage<'_>,
        name: &Arc<str>,
        lookup: &Lookup,
        tag: impl Fn(&str) -> Value,
    ) -> Result<Option<OneSeries>, StatementError> {
        let of_tag = |at: &usize| (*at, tag(&self.plan.references[*at].0));
        let constants: Vec<_> = lookup.tags.iter().map(of_tag).collect();
        let known = |at: usize| match lookup.field[at] {
            Some(_) => None,
            None => {
                Some(constants.binary_search_by_key(&at, |(at, _)| *at).map_or(&Value::Null, |at| &constants[at].1))
            }
        };
        let holds = self.condition.map_or(Some(true), |condition| condition.holds(&known, &[]));
        if holds == Some(false) {
            return Ok(None);
        }
        // The regular expressions are evaluated once for the series, not for each row.
        let mut matched = vec![None; if holds.is_none() { self.plan.patterns } else { 0 }];
        if !matched.is_empty() {
            self.condition.inspect(|condition| condition.match_known(&known, &mut matched));
        }
        let of_value = |value: &Value| if let Value::Text(text) = value { bytes_of(text) } else { 0 };
        let texts: usize = constants.iter().map(|(_, value)| of_value(value)).sum();
        usage.memory(SERIES_BYTES + matched.len() + constants.len() * size_of::<(usize, Value)>() + texts)?;
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
        // The rows of subqueries precede those of measurements at the same instant.
        let order = if lookup.is_of_table { self.series } else { OF_MEASUREMENT | self.series };
        Ok(Some(OneSeries { group, order, constants, holds, matched, rows: 0 }))
    }

    /// Drops the series that `SLIMIT` and `SOFFSET` leave out of one source.
    pub(super) fn limit_series<T>(&self, mut groups: Vec<usize>, prepared: &mut Vec<OneSeries>, series: &mut Vec<T>) {
        let limit = self.settings.limit;
        if limit.series == 0 && limit.skip_series == 0 {
            return;
        }
        groups.sort_unstable();
        groups.dedup();
        groups.sort_by_cached_key(|group| (self.groups[*group].key_of_present_tags(), *group));
        // Without SLIMIT, SOFFSET leaves no series, as in InfluxDB.
        let kept: HashSet<_> = groups.into_iter().skip(limit.skip_series).take(limit.series).collect();
        let mut is_kept = prepared.iter().map(|one| kept.contains(&one.group)).collect::<Vec<_>>().into_iter();
        series.retain(|_| is_kept.next().unwrap_or(false));
        prepared.retain(|one| kept.contains(&one.group));
    }
}

/// The memory of a text. Empty texts are shared, so they count nothing.
const fn bytes_of(text: &str) -> usize {
    if text.is_empty() { 0 } else { TEXT_BYTES + text.len() }
}
