//! Reads what all the collections have in common: numbers, stats.

use bson::{RawBsonRef, RawDocument};

use super::names;
use crate::model::{Metric, Stats};
use crate::store::WriteError;

/// A stored document has not the shape that this version knows.
#[derive(Debug, thiserror::Error)]
#[error("a stored document is not readable: {0}")]
pub(super) struct Unreadable(pub(super) String);

impl From<bson::error::Error> for Unreadable {
    fn from(error: bson::error::Error) -> Self {
        Self(error.to_string())
    }
}

/// What an unreadable bucket means for a write: it can be mended by hand only, and must not hold up the others.
impl From<Unreadable> for WriteError {
    fn from(error: Unreadable) -> Self {
        Self::Permanent { reason: "unreadable", detail: error.to_string() }
    }
}

/// Reads the sub-document `stats`.
pub(super) fn decode_stats(stats: &RawDocument) -> Result<Vec<(Metric, Stats)>, Unreadable> {
    let entries = stats.iter().map(|element| {
        let (key, value) = element?;
        let of = value.as_document().ok_or_else(|| Unreadable("the stats of a metric are not a document".into()))?;
        Ok((names::original(key.as_str()).into(), decode_stats_of_metric(of)?))
    });
    entries.collect()
}

fn decode_stats_of_metric(of: &RawDocument) -> Result<Stats, Unreadable> {
    let mut stats = Stats { count: 0, min: f64::NAN, max: f64::NAN, sum: f64::NAN };
    for element in of {
        let (key, value) = element?;
        let value = number(value)?;
        match key.as_str() {
            "count" => stats.count = value as u64,
            "min" => stats.min = value,
            "max" => stats.max = value,
            "sum" => stats.sum = value,
            _ => {}
        }
    }
    if stats.count == 0 || stats.min.is_nan() || stats.max.is_nan() || stats.sum.is_nan() {
        return Err(Unreadable("the stats of a metric are not complete".into()));
    }
    Ok(stats)
}

/// The integer in a field, whichever of the two integer types it has.
pub(super) fn integer(document: &RawDocument, field: &str) -> Result<i64, Unreadable> {
    match document.get(field)? {
        Some(RawBsonRef::Int32(value)) => Ok(value.into()),
        Some(RawBsonRef::Int64(value)) => Ok(value),
        _ => Err(Unreadable(format!("{field} is not an integer"))),
    }
}

/// A number that people may have edited by hand, and so may have made an integer.
pub(super) fn number(value: RawBsonRef<'_>) -> Result<f64, Unreadable> {
    match value {
        RawBsonRef::Double(value) => Ok(value),
        RawBsonRef::Int32(value) => Ok(value.into()),
        RawBsonRef::Int64(value) => Ok(value as f64),
        other => Err(Unreadable(format!("a {:?} where a number should be", other.element_type()))),
    }
}
