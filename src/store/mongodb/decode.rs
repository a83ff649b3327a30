//! Decodes the numbers and the schema version of stored documents, and the numbers of replies.

use bson::{Bson, RawBsonRef, RawDocument};

use crate::store::{Cause, StoreError, WriteError};

/// A stored document does not have the shape that this program knows.
#[derive(Debug, thiserror::Error)]
#[error("a stored document is not readable: {0}")]
pub(super) struct DecodeError(pub(super) String);

impl From<bson::error::Error> for DecodeError {
    fn from(error: bson::error::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<DecodeError> for StoreError {
    fn from(error: DecodeError) -> Self {
        Self::new(Cause::UnreadableDocument, error.to_string())
    }
}

/// A write to an unreadable bucket fails for good: only people can repair the document, and it must not hold
/// up the other buckets.
impl From<DecodeError> for WriteError {
    fn from(error: DecodeError) -> Self {
        StoreError::from(error).into()
    }
}

/// The integer in a field, of either integer type.
pub(super) fn integer(document: &RawDocument, field: &str) -> Result<i64, DecodeError> {
    match document.get(field)? {
        Some(RawBsonRef::Int32(value)) => Ok(value.into()),
        Some(RawBsonRef::Int64(value)) => Ok(value),
        _ => Err(DecodeError(format!("{field} is not an integer"))),
    }
}

/// The integer in a reply of the server, whose version decides on its type.
pub(super) fn server_integer(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(value) => Some((*value).into()),
        Bson::Int64(value) => Some(*value),
        Bson::Double(value) => Some(*value as i64),
        _ => None,
    }
}

/// Checks that a document has a schema version that this program knows: 1 to `newest`.
pub(super) fn expect_version(document: &RawDocument, newest: i32) -> Result<(), DecodeError> {
    match integer(document, "schemaVersion") {
        Ok(version) if (1..=i64::from(newest)).contains(&version) => Ok(()),
        Ok(version) => Err(DecodeError(format!(
            "its schemaVersion is {version}, and this program knows versions up to {newest} only"
        ))),
        Err(_) => Err(DecodeError("it has no schemaVersion".into())),
    }
}

/// A finite number: the value of a reading.
pub(super) fn finite(value: RawBsonRef<'_>) -> Result<f64, DecodeError> {
    let value = number(value)?;
    if value.is_finite() { Ok(value) } else { Err(DecodeError(format!("a value is {value}"))) }
}

/// A number. People may have edited it by hand, and so may have made it an integer.
pub(super) fn number(value: RawBsonRef<'_>) -> Result<f64, DecodeError> {
    match value {
        RawBsonRef::Double(value) if value.is_nan() => Err(DecodeError("a NaN where a number should be".into())),
        RawBsonRef::Double(value) => Ok(value),
        RawBsonRef::Int32(value) => Ok(value.into()),
        RawBsonRef::Int64(value) => Ok(value as f64),
        other => Err(DecodeError(format!("a {:?} where a number should be", other.element_type()))),
    }
}
