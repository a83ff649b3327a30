//! Labels as the formats send them: an object of texts, which tells series of one metric apart.

use std::borrow::Cow;
use std::fmt;

use smallvec::SmallVec;

use super::{
    Code, Rejection,
    problem::{Parsed, quoted, rejection},
};
use crate::common::work;
use crate::model::series::{self, SERIES_MAX_BYTES, SERIES_MAX_LABELS, SeriesError};

/// The label that the unit of a value becomes.
const UNIT: &str = "unit";

/// Up to this many labels are collected without an allocation.
const USUAL_LABELS: usize = 8;

/// The labels that were read so far. No more are kept than a series may have.
#[derive(Debug, Default)]
pub(super) struct Labels<'b> {
    kept: Vec<(Cow<'b, str>, Cow<'b, str>)>,
    count: usize,
    bytes: usize,
    problem: Option<Rejection>,
}

impl<'b> Labels<'b> {
    /// Adds a label.
    pub(super) fn push(&mut self, key: Cow<'b, str>, value: Cow<'b, str>) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(key.len() + value.len());
        if self.count <= SERIES_MAX_LABELS && self.bytes <= SERIES_MAX_BYTES {
            self.kept.push((key, value));
        }
    }

    /// Adds a label whose value is not a text.
    #[cold]
    pub(super) fn push_invalid(&mut self, key: &str, found: impl fmt::Display) {
        let detail = || format!("the label {} must be a string, found {found}", quoted(key));
        self.problem.get_or_insert_with(|| rejection(Code::InvalidLabel, detail()));
    }

    /// Whether there is a label `unit`.
    pub(super) fn has_unit(&self) -> bool {
        self.kept.iter().any(|(key, _)| key == UNIT)
    }

    fn kept(&self) -> Parsed<&[(Cow<'b, str>, Cow<'b, str>)]> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        if self.count > SERIES_MAX_LABELS {
            return Err(SeriesError::TooManyLabels(self.count).into());
        }
        series::check_length(self.bytes)?;
        Ok(&self.kept)
    }
}

/// The canonical text `{a=x,b=y}` of the labels of a reading; empty without any.
///
/// It has the labels of the reading (`own`), those of the object around it (`outer`), and the unit. A label
/// of the reading replaces the same label of the object.
pub(super) fn text(own: Option<&Labels<'_>>, outer: Option<&Labels<'_>>, unit: Option<&str>) -> Parsed<String> {
    let own = own.map_or(Ok(&[][..]), Labels::kept)?;
    let outer = outer.map_or(Ok(&[][..]), Labels::kept)?;
    let inherited = outer.iter().filter(|(key, _)| own.iter().all(|(known, _)| known != key));
    let labels = own.iter().chain(inherited).map(|(key, value)| (&**key, &**value));
    let mut labels: SmallVec<[_; USUAL_LABELS]> = labels.chain(unit.map(|unit| (UNIT, unit))).collect();
    let mut text = String::new();
    series::append_labels(&mut text, &mut labels)?;
    work::count(text.len());
    Ok(text)
}

/// Replaces `name` by `metric`, if there is one, and adds `labels`.
///
/// The labels are a canonical text. A name that has labels already gets more: `m{b=2}` and `{a=1}` make
/// `m{b=2,a=1}`.
pub(super) fn apply<'b>(name: &mut Cow<'b, str>, metric: Option<&Cow<'b, str>>, labels: &str) -> Parsed<()> {
    if metric.is_none() && labels.is_empty() {
        return Ok(());
    }
    let metric = metric.unwrap_or(name);
    series::check_length(metric.len() + labels.len())?;
    work::count(metric.len() + labels.len());
    let labelled = match metric.strip_suffix('}') {
        _ if labels.is_empty() => metric.clone(),
        Some(open) => Cow::Owned([open, ",", &labels[1..]].concat()),
        None => Cow::Owned([metric, labels].concat()),
    };
    *name = labelled;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels<'b>(pairs: &[(&'b str, &'b str)]) -> Labels<'b> {
        let mut labels = Labels::default();
        for &(key, value) in pairs {
            labels.push(Cow::Borrowed(key), Cow::Borrowed(value));
        }
        labels
    }

    #[test]
    fn labels_of_a_reading_come_before_those_around_it() {
        let (own, outer) = (labels(&[("b", "own"), ("a", "1")]), labels(&[("c", "3"), ("b", "outer")]));
        assert_eq!(text(Some(&own), Some(&outer), Some("Cel")).as_deref(), Ok("{a=1,b=own,c=3,unit=Cel}"));
        assert_eq!(text(None, Some(&outer), None).as_deref(), Ok("{b=outer,c=3}"));
        assert_eq!(text(None, None, None).as_deref(), Ok(""));
        let twice = text(Some(&labels(&[("unit", "K")])), None, Some("Cel"));
        assert_eq!(twice.map_err(|problem| problem.code), Err(Code::InvalidLabel));
    }

    #[test]
    fn a_name_with_labels_gets_more_of_them() {
        for (name, labels, labelled) in
            [("m", "", "m"), ("m", "{a=1}", "m{a=1}"), ("m{b=2}", "{a=1}", "m{b=2,a=1}"), ("}", "{a=1}", ",a=1}")]
        {
            let mut found = Cow::Borrowed(name);
            assert_eq!((apply(&mut found, None, labels), &*found), (Ok(()), labelled));
            let mut found = Cow::Borrowed("value");
            assert_eq!((apply(&mut found, Some(&Cow::Borrowed(name)), labels), &*found), (Ok(()), labelled));
        }
        let mut long = Cow::Owned("m".repeat(SERIES_MAX_BYTES));
        assert_eq!(apply(&mut long, None, "{a=1}").map_err(|problem| problem.code), Err(Code::SeriesTooLong));
    }

    #[test]
    fn no_more_labels_are_kept_than_a_series_may_have() {
        let keys: Vec<_> = (0..1_000).map(|key| key.to_string()).collect();
        let pairs: Vec<_> = keys.iter().map(|key| (&**key, "v")).collect();
        let many = labels(&pairs);
        assert_eq!((many.kept.len(), text(Some(&many), None, None).unwrap_err().code), (32, Code::TooManyLabels));
        let long = "v".repeat(1 << 20);
        let long = labels(&[("k", &long)]);
        assert_eq!((long.kept.len(), text(Some(&long), None, None).unwrap_err().code), (0, Code::SeriesTooLong));
    }
}
