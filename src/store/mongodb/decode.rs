//! Reads what all the collections have in common: numbers.

use bson::{RawBsonRef, RawDocument};

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
