//! The fields about the names of metrics: `metric`, `unit`, `labels` and `measurementBytes`, of a reading and
//! of the object around it.

use std::borrow::Cow;
use std::cell::Cell;

use super::problem::Parsed;
use crate::wire::labels::{self, Labels};
use crate::wire::{Ignored, Rejection, Sink};

/// The fields about the names of metrics.
#[derive(Debug, Default)]
pub(super) struct Names<'b> {
    pub(super) metric: Option<Parsed<Option<Cow<'b, str>>>>,
    pub(super) unit: Option<Parsed<Option<Cow<'b, str>>>>,
    pub(super) labels: Option<Parsed<Labels<'b>>>,
    pub(super) measurement_bytes: Option<Parsed<Option<u8>>>,
}

/// [`OuterNames::texts`] without labels.
static NO_LABELS: [Parsed<String>; 2] = [Ok(String::new()), Ok(String::new())];

/// The fields beside `readings`. They apply to each reading that lacks them.
#[derive(Debug)]
pub(super) struct OuterNames<'o, 'b> {
    names: &'o Names<'b>,
    /// The canonical texts of the labels: of all metrics, and of `value` with its unit.
    texts: [Parsed<String>; 2],
    /// Whether a reading had a `value`, which `metric` and `unit` describe.
    has_described: Cell<bool>,
    /// Whether a valid `value` used this object's `metric`, and its `unit`.
    is_used: Cell<[bool; 2]>,
}

impl<'o, 'b> OuterNames<'o, 'b> {
    pub(super) fn new(names: &'o Names<'b>) -> Self {
        let text = |unit| labels::text(None, names.labels()?, unit);
        let unit = pick(None, names.unit.as_ref());
        let texts = [text(None), unit.and_then(|unit| text(text_of(unit)))];
        Self { names, texts, has_described: Cell::new(false), is_used: Cell::new([false; 2]) }
    }

    /// Notes that a reading with these names has a `value`, which is valid or not.
    pub(super) fn describe(&self, own: &Names<'b>, is_valid: bool) {
        self.has_described.set(true);
        if is_valid {
            let of_own = [&own.metric, &own.unit];
            let is_used = self.is_used.get();
            self.is_used.set([0, 1].map(|at| is_used[at] || matches!(of_own[at], None | Some(Ok(None)))));
        }
    }

    /// Reports `metric` and `unit` as ignored if no reading had a `value`.
    ///
    /// A malformed `metric` or `unit` is reported too, unless a reading with a valid `value` needed it: then
    /// this value was rejected, and the rejection names the problem.
    pub(super) fn finish(&self, sink: &mut impl Sink) {
        let of_value = [("metric", &self.names.metric), ("unit", &self.names.unit)];
        for ((key, found), is_used) in of_value.into_iter().zip(self.is_used.get()) {
            let is_needed = match found {
                None => true,
                Some(Ok(_)) => self.has_described.get(),
                Some(Err(_)) => is_used,
            };
            if !is_needed {
                sink.ignore(Ignored::UnknownKey, key);
            }
        }
    }
}

impl<'b> Names<'b> {
    /// The keys that describe `value`, and whether each is present.
    pub(super) const fn of_value(&self) -> [(&'static str, bool); 2] {
        [("metric", self.metric.is_some()), ("unit", self.unit.is_some())]
    }

    fn labels(&self) -> Parsed<Option<&Labels<'b>>> {
        self.labels.as_ref().map(Parsed::as_ref).transpose().map_err(Clone::clone)
    }

    /// Completes the names of the metrics in `values`.
    ///
    /// `value_at` is the index of the value of the key `value`. If a name cannot be completed, its value is
    /// removed, and its rejection goes to `bad_values`.
    pub(super) fn complete(
        &self,
        values: &mut Vec<(Cow<'b, str>, f64)>,
        value_at: Option<usize>,
        outer: Option<&OuterNames<'_, 'b>>,
        bad_values: &mut Vec<Rejection>,
    ) -> Parsed<()> {
        let mut texts = Cow::Borrowed(outer.map_or(&NO_LABELS, |outer| &outer.texts));
        let unit = pick(self.unit.as_ref(), outer.and_then(|outer| outer.names.unit.as_ref()));
        if self.labels.is_some() || self.unit.is_some() {
            let (own, around) = (self.labels()?, outer.map_or(Ok(None), |outer| outer.names.labels())?);
            let with_unit = |unit| labels::text(own, around, unit);
            // A label "unit" of the reading replaces the unit around it.
            let is_replaced = self.unit.is_none() && own.is_some_and(Labels::has_unit);
            let unit = unit.map(|unit| text_of(unit).filter(|_| !is_replaced));
            texts = Cow::Owned([with_unit(None), unit.and_then(with_unit)]);
        }
        let [labels, labels_of_value] = &*texts;
        let labels = labels.as_ref().map_err(Clone::clone)?;
        let metric = pick(self.metric.as_ref(), outer.and_then(|outer| outer.names.metric.as_ref()));
        let mut places = 0..;
        values.retain_mut(|(name, _)| {
            let completed = if places.next() == value_at {
                metric.as_ref().map_err(Clone::clone).and_then(|metric| {
                    let labels = labels_of_value.as_ref().map_err(Clone::clone)?;
                    labels::apply(name, *metric, labels)
                })
            } else {
                labels::apply(name, None, labels)
            };
            completed.map_err(|problem| bad_values.push(problem)).is_ok()
        });
        Ok(())
    }

    /// The length of the measurement that begins the completed names of `values`.
    ///
    /// It is 0 if the measurement would end in labels.
    pub(super) fn measurement_bytes(
        &self,
        outer: Option<&OuterNames<'_, 'b>>,
        values: &[(Cow<'b, str>, f64)],
    ) -> Parsed<u8> {
        let outer = outer.and_then(|outer| outer.names.measurement_bytes.as_ref());
        let bytes = pick(self.measurement_bytes.as_ref(), outer)?.copied().unwrap_or(0);
        let ends_in_labels = values.iter().any(|(name, _)| name.bytes().take(bytes.into()).any(|byte| byte == b'{'));
        Ok(if ends_in_labels { 0 } else { bytes })
    }
}

/// The field of the reading, or else that field of the object around it.
fn pick<'n, T>(own: Option<&'n Parsed<Option<T>>>, outer: Option<&'n Parsed<Option<T>>>) -> Parsed<Option<&'n T>> {
    let found = own.filter(|own| !matches!(own, Ok(None))).or(outer);
    found.map_or(Ok(None), |found| found.as_ref().map(Option::as_ref).map_err(Clone::clone))
}

/// The text of a unit; `None` if it is empty.
fn text_of<'n>(unit: Option<&'n Cow<'_, str>>) -> Option<&'n str> {
    unit.map(|unit| &**unit).filter(|unit| !unit.is_empty())
}
