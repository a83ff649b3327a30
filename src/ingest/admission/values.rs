//! The check of the values of a reading.

use std::borrow::Cow;
use std::collections::HashSet;

use super::super::receipt::ByCode;
use super::MAX_LISTED;
use crate::common::work;
use crate::model::series;
use crate::wire::{Code, Rejection};

/// Metrics and values, as [`Incoming`](crate::wire::Incoming) has them.
type Values<'a> = [(Cow<'a, str>, f64)];

/// Rejected values of one reading.
#[derive(Debug, Default)]
pub(super) struct RejectedValues {
    pub(super) by_code: ByCode,
    /// The first rejections, up to [`MAX_LISTED`].
    pub(super) first: Vec<Rejection>,
}

impl RejectedValues {
    pub(super) fn add(&mut self, rejection: Rejection) {
        self.by_code.count(rejection.code);
        if self.first.len() < MAX_LISTED {
            self.first.push(rejection);
        }
    }
}

/// Whether a value is finite, and its series has a usual text.
#[inline]
pub(super) fn is_usual((name, value): &(Cow<'_, str>, f64)) -> bool {
    work::count(name.len().min(series::SERIES_MAX_BYTES));
    value.is_finite() && series::is_usual(name)
}

/// Returns the valid values of a reading, with the canonical texts of their series. Adds the others to
/// `rejected`.
///
/// The reading is rejected if no value is valid, with the first of these rejections, or if a series occurs
/// twice.
pub(super) fn valid<'v>(
    values: &'v Values<'_>,
    rejected: &mut RejectedValues,
) -> Result<Vec<(Cow<'v, str>, f64)>, Rejection> {
    let mut valid = Vec::with_capacity(values.len());
    for (name, value) in values {
        work::count(name.len().min(series::SERIES_MAX_BYTES));
        match series::canonical(name) {
            Ok(name) if value.is_finite() => valid.push((name, *value)),
            Ok(name) => {
                let detail = format!("the value of \"{name}\" is not a finite number");
                rejected.add(Rejection { code: Code::NonFiniteValue, detail });
            }
            Err(error) => rejected.add(error.into()),
        }
    }
    if valid.is_empty() {
        return Err(rejected.first.swap_remove(0));
    }
    let mut names = HashSet::with_capacity(valid.len());
    match valid.iter().find(|(name, _)| !names.insert(&**name)) {
        Some((name, _)) => {
            Err(Rejection { code: Code::DuplicateKey, detail: format!("the series \"{name}\" is duplicated") })
        }
        None => Ok(valid),
    }
}
