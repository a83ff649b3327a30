//! One reading: what the keys of an object say, without `readings`. `fields` reads them.

mod fields;

use std::borrow::Cow;

use super::{
    context::Context,
    metric_names::{Names, OuterNames},
    problem::{Parsed, duplicate_key, rejection, repeated},
};
use crate::wire::{Code, Ignored, Limits, Rejection, Sink};

/// A metric and its value.
type Value<'b> = (Cow<'b, str>, f64);

/// The fields of a reading that were read so far. Readings share the buffer `values`.
#[derive(Debug, Default)]
pub(super) struct Reading<'b> {
    pub(super) device: Option<Parsed<Cow<'b, str>>>,
    ts_ms: Option<Parsed<Option<i64>>>,
    /// The first values, up to the limit of a reading.
    values: Vec<Value<'b>>,
    /// The number of values beyond the limit.
    surplus: usize,
    /// The index in `values` of the value of the key `value`.
    value_at: Option<usize>,
    has_value_key: bool,
    has_values_key: bool,
    rare: Rare<'b>,
    /// Whether `rare` has anything.
    has_rare: bool,
}

/// The fields that a plain reading does not have.
#[derive(Debug, Default)]
struct Rare<'b> {
    metadata: Option<Parsed<Option<&'b str>>>,
    age_ms: Option<Parsed<Option<i64>>>,
    names: Names<'b>,
    /// The values that are rejected by themselves.
    bad_values: Vec<Rejection>,
    /// The first unknown key.
    unknown_key: Option<Rejection>,
    /// The first problem of the whole reading.
    problem: Option<Rejection>,
    has_null: bool,
}

impl<'b> Reading<'b> {
    /// Clears all fields.
    pub(super) fn clear(&mut self) {
        self.values.clear();
        (self.device, self.ts_ms) = (None, None);
        (self.surplus, self.value_at) = (0, None);
        (self.has_value_key, self.has_values_key) = (false, false);
        if std::mem::take(&mut self.has_rare) {
            self.rare = Rare::default();
        }
    }

    /// Rejects the whole reading, unless there is a reason already.
    #[cold]
    pub(super) fn reject(&mut self, problem: Rejection) {
        self.rare().problem.get_or_insert(problem);
    }

    /// Whether the reading has a device, a time and values only.
    pub(super) const fn is_plain(&self) -> bool {
        !self.has_rare
    }

    /// The instant of a plain reading in Unix milliseconds.
    pub(super) fn plain_ts_ms(&self) -> Parsed<Option<i64>> {
        self.ts_ms.as_ref().map_or(Ok(None), Clone::clone)
    }

    /// The values of a plain reading: at least one, and each metric once.
    pub(super) fn plain_values(&self, limits: &Limits) -> Parsed<&[Value<'b>]> {
        limits.check_metrics(self.values.len() + self.surplus)?;
        if self.values.is_empty() {
            return Err(self.without_values());
        }
        match repeated(self.values.iter().map(|(metric, _)| &**metric)) {
            Some(metric) => Err(duplicate_key(metric)),
            None => Ok(&self.values),
        }
    }

    /// The reason to reject all readings of this object: an unknown key.
    pub(super) fn take_unknown_key(&mut self) -> Option<Rejection> {
        if self.has_rare { self.rare.unknown_key.take() } else { None }
    }

    pub(super) const fn has_metadata(&self) -> bool {
        self.has_rare && self.rare.metadata.is_some()
    }

    /// The metadata, if there is any.
    pub(super) fn metadata(&self) -> Parsed<Option<&'b str>> {
        match &self.rare.metadata {
            Some(found) if self.has_rare => found.clone(),
            _ => Ok(None),
        }
    }

    /// Whether there is a value, valid or not.
    pub(super) fn has_values(&self) -> bool {
        !self.values.is_empty()
            || self.surplus > 0
            || self.has_rare && (self.rare.problem.is_some() || !self.rare.bad_values.is_empty())
    }

    /// The instant in Unix milliseconds, or `default` if the reading has none.
    pub(super) fn ts_ms(&self, now_ms: i64, default: &Parsed<Option<i64>>) -> Parsed<Option<i64>> {
        if self.has_rare && self.rare.age_ms.is_some() {
            return self.ts_ms_by_age(now_ms, default);
        }
        match &self.ts_ms {
            None | Some(Ok(None)) => default.clone(),
            Some(found) => found.clone(),
        }
    }

    #[cold]
    fn ts_ms_by_age(&self, now_ms: i64, default: &Parsed<Option<i64>>) -> Parsed<Option<i64>> {
        let ts_ms = self.ts_ms.clone().transpose()?.flatten();
        match (ts_ms, self.rare.age_ms.clone().transpose()?.flatten()) {
            (Some(_), Some(_)) => {
                let names = "a reading has either a time (\"ts\", \"timestamp\" or \"time\") or an \"ageMs\"";
                Err(rejection(Code::DuplicateKey, format!("{names}, and this has both")))
            }
            (None, Some(age_ms)) => Ok(Some(now_ms.saturating_sub(age_ms))),
            (Some(ts_ms), None) => Ok(Some(ts_ms)),
            (None, None) => default.clone(),
        }
    }

    /// Whether the reading has no time of its own.
    pub(super) fn needs_time(&self) -> bool {
        let has_age = self.has_rare && !matches!(self.rare.age_ms, None | Some(Ok(None)));
        !has_age && matches!(self.ts_ms, None | Some(Ok(None)))
    }

    /// The keys of the time that are present.
    pub(super) fn time_keys(&self) -> impl Iterator<Item = &'static str> {
        let keys = [("ts", self.ts_ms.is_some()), ("ageMs", self.has_rare && self.rare.age_ms.is_some())];
        keys.into_iter().filter_map(|(key, is_present)| is_present.then_some(key))
    }

    /// The defaults of the names of `readings`, if this object has any.
    pub(super) fn outer_names(&self) -> Option<OuterNames<'_, 'b>> {
        let Names { metric, unit, labels } = &self.rare.names;
        let has_names = self.has_rare && (metric.is_some() || unit.is_some() || labels.is_some());
        has_names.then(|| OuterNames::new(&self.rare.names))
    }

    /// The valid values (at least one, and each metric once), and the rejections of the other values.
    pub(super) fn values(
        &mut self,
        outer: Option<&OuterNames<'_, 'b>>,
        context: &Context<'b>,
        sink: &mut impl Sink,
    ) -> Parsed<(&[Value<'b>], Vec<Rejection>)> {
        let mut bad_values = Vec::new();
        if self.has_rare || outer.is_some() {
            bad_values = self.complete(outer, context, sink)?;
        }
        context.limits.check_metrics(self.values.len() + self.surplus + bad_values.len())?;
        if self.values.is_empty() && !bad_values.is_empty() {
            return Err(bad_values.swap_remove(0));
        }
        Ok((self.plain_values(&context.limits)?, bad_values))
    }

    #[cold]
    fn without_values(&self) -> Rejection {
        let detail = match (self.rare.has_null && self.has_rare, self.has_values_key) {
            (true, _) => "there is no value except null, which stands for none",
            (false, true) => "\"values\" is empty",
            (false, false) => "there is no \"value\" and no \"values\"",
        };
        rejection(Code::MissingValues, detail)
    }

    /// Completes the names of the metrics. Returns the rejections of single values.
    #[cold]
    fn complete(
        &mut self,
        outer: Option<&OuterNames<'_, 'b>>,
        context: &Context<'b>,
        sink: &mut impl Sink,
    ) -> Parsed<Vec<Rejection>> {
        if let Some(problem) = self.rare.problem.take() {
            return Err(problem);
        }
        let mut bad_values = std::mem::take(&mut self.rare.bad_values);
        if self.has_value_key {
            outer.inspect(|outer| outer.describe(&self.rare.names, self.value_at.is_some()));
        } else {
            for (key, _) in self.rare.names.of_value().iter().filter(|(_, is_present)| *is_present) {
                if context.options.flat {
                    sink.ignore(Ignored::String, key);
                } else {
                    let detail = format!("\"{key}\" describes \"value\", and there is none");
                    bad_values.push(rejection(Code::InvalidValue, detail));
                }
            }
        }
        self.rare.names.complete(&mut self.values, self.value_at, outer, &mut bad_values)?;
        Ok(bad_values)
    }

    fn rare(&mut self) -> &mut Rare<'b> {
        self.has_rare = true;
        &mut self.rare
    }
}
