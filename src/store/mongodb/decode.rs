//! Decodes the numbers and the schema version of stored documents, and the numbers of replies.
//!
//! [`elements`] walks through the stats of tens of thousands of hours for one answer. The iterator of the
//! driver, which decodes every type and checks every key, takes several times as long.

use bson::{Bson, DateTime, RawBsonRef, RawDocument};

use crate::store::{Cause, StoreError};

/// A stored document does not have the shape that this program knows.
#[derive(Debug, thiserror::Error)]
#[error("a stored document is not readable: {0}")]
pub(super) struct DecodeError(pub(super) String);

impl From<bson::error::Error> for DecodeError {
    fn from(error: bson::error::Error) -> Self {
        Self(error.to_string())
    }
}

/// A write to an unreadable bucket fails for good: only people can repair the document, and it must not hold
/// up the other buckets.
impl From<DecodeError> for StoreError {
    fn from(error: DecodeError) -> Self {
        Self::new(Cause::UnreadableDocument, error.to_string())
    }
}

/// The keys and values of a document's elements, in their order. A value of a type that stats never have is
/// returned as `Undefined`.
pub(super) fn elements(document: &RawDocument) -> Elements<'_> {
    let bytes = document.as_bytes();
    Elements { rest: bytes.get(4..bytes.len().saturating_sub(1)).unwrap_or_default() }
}

/// The values of these fields of a document, which are found in one pass.
pub(super) fn values_of<'a, const N: usize>(
    document: &'a RawDocument,
    names: [&str; N],
) -> Result<[Option<RawBsonRef<'a>>; N], DecodeError> {
    let mut found = [None; N];
    for element in elements(document) {
        let (key, value) = element?;
        if let Some(at) = names.iter().position(|name| name.as_bytes() == key) {
            found[at].get_or_insert(value);
        }
    }
    Ok(found)
}

/// The text in a field.
pub(super) fn text<'a>(value: Option<RawBsonRef<'a>>, field: &str) -> Result<&'a str, DecodeError> {
    value.and_then(RawBsonRef::as_str).ok_or_else(|| DecodeError(format!("{field} is not a text")))
}

/// The instant in a field, in Unix milliseconds.
pub(super) fn instant_ms(value: Option<RawBsonRef<'_>>, field: &str) -> Result<i64, DecodeError> {
    let instant = value.and_then(RawBsonRef::as_datetime);
    instant.map(DateTime::timestamp_millis).ok_or_else(|| DecodeError(format!("{field} is not an instant")))
}

/// The document in a field.
pub(super) fn document_in<'a>(value: Option<RawBsonRef<'a>>, field: &str) -> Result<&'a RawDocument, DecodeError> {
    value.and_then(RawBsonRef::as_document).ok_or_else(|| DecodeError(format!("{field} is not a document")))
}

/// Reads elements whose order and types are known: those of documents that this program wrote.
///
/// A document of another shape is no error: [`elements`] reads it then.
pub(super) struct UsualElements<'a> {
    rest: &'a [u8],
}

impl<'a> UsualElements<'a> {
    pub(super) fn of(document: &'a RawDocument) -> Self {
        Self { rest: elements(document).rest }
    }

    /// Reads the value, 8 bytes, of the next element, if it begins with `head`.
    ///
    /// `head` is the type and the key, with the zero at its end.
    #[inline]
    pub(super) fn next<const HEAD: usize>(&mut self, head: &[u8; HEAD]) -> Option<[u8; 8]> {
        self.skip(head)?;
        let (value, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*value)
    }

    /// Skips these bytes; `None` if other bytes follow.
    #[inline]
    pub(super) fn skip<const BYTES: usize>(&mut self, bytes: &[u8; BYTES]) -> Option<()> {
        let (found, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        (found == bytes).then_some(())
    }

    /// The bytes of the elements that were not read.
    pub(super) const fn rest(self) -> &'a [u8] {
        self.rest
    }
}

/// See [`elements`].
pub(super) struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<(&'a [u8], RawBsonRef<'a>), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, rest) = self.rest.split_first()?;
        let element = element(kind, rest);
        self.rest = match &element {
            Some((.., rest)) => rest,
            None => &[],
        };
        Some(match element {
            Some((key, value, _)) => Ok((key, value)),
            None => Err(DecodeError("it is not BSON".into())),
        })
    }
}

/// The key and the value of an element, and the bytes behind it; `None` if it is malformed.
fn element(kind: u8, bytes: &[u8]) -> Option<(&[u8], RawBsonRef<'_>, &[u8])> {
    let (key, rest) = cstring(bytes)?;
    let (value, rest) = rest.split_at_checked(value_bytes(kind, rest)?)?;
    let decoded = match kind {
        0x01 => RawBsonRef::Double(f64::from_le_bytes(value.try_into().ok()?)),
        0x02 => RawBsonRef::String(str::from_utf8(value.get(4..value.len() - 1)?).ok()?),
        0x03 => RawBsonRef::Document(RawDocument::from_bytes(value).ok()?),
        0x09 => RawBsonRef::DateTime(DateTime::from_millis(i64::from_le_bytes(value.try_into().ok()?))),
        0x10 => RawBsonRef::Int32(i32::from_le_bytes(value.try_into().ok()?)),
        0x12 => RawBsonRef::Int64(i64::from_le_bytes(value.try_into().ok()?)),
        _ => RawBsonRef::Undefined,
    };
    Some((key, decoded, rest))
}

/// The length of a value of a type. Format: <https://bsonspec.org/spec.html>.
fn value_bytes(kind: u8, rest: &[u8]) -> Option<usize> {
    let length = || usize::try_from(i32::from_le_bytes(*rest.first_chunk()?)).ok();
    match kind {
        0x06 | 0x0A | 0x7F | 0xFF => Some(0),
        0x08 => Some(1),
        0x10 => Some(4),
        0x01 | 0x09 | 0x11 | 0x12 => Some(8),
        0x07 => Some(12),
        0x13 => Some(16),
        0x03 | 0x04 | 0x0F => length(),
        0x02 | 0x0D | 0x0E => length()?.checked_add(4),
        0x05 => length()?.checked_add(5),
        0x0C => length()?.checked_add(16),
        0x0B => {
            let (_, options) = cstring(rest)?;
            let (_, behind) = cstring(options)?;
            Some(rest.len() - behind.len())
        }
        _ => None,
    }
}

/// The bytes before the first zero, and those behind it.
fn cstring(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

/// The integer in a field of a document, of either integer type.
pub(super) fn integer(document: &RawDocument, field: &str) -> Result<i64, DecodeError> {
    integer_in(document.get(field)?, field)
}

/// The integer in a field, of either integer type.
pub(super) fn integer_in(value: Option<RawBsonRef<'_>>, field: &str) -> Result<i64, DecodeError> {
    match value {
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

/// Checks that a document has the schema version that this program knows.
pub(super) fn expect_version(document: &RawDocument, known: i32) -> Result<(), DecodeError> {
    check_version(document.get("schemaVersion")?, known)
}

/// Checks the schema version of a document; see [`expect_version`].
pub(super) fn check_version(version: Option<RawBsonRef<'_>>, known: i32) -> Result<(), DecodeError> {
    let version = match version {
        Some(RawBsonRef::Int32(version)) => version.into(),
        Some(RawBsonRef::Int64(version)) => version,
        _ => return Err(DecodeError("it has no schemaVersion".into())),
    };
    if version == i64::from(known) {
        return Ok(());
    }
    Err(DecodeError(format!("its schemaVersion is {version}, and this program knows version {known} only")))
}

/// Reads a finite number: the value of a reading.
pub(super) fn finite(value: RawBsonRef<'_>) -> Result<f64, DecodeError> {
    let value = number(value)?;
    if value.is_finite() { Ok(value) } else { Err(DecodeError(format!("a value is {value}"))) }
}

/// Reads a number that is not NaN.
///
/// A person who edited the document by hand may have made it an integer.
pub(super) fn number(value: RawBsonRef<'_>) -> Result<f64, DecodeError> {
    match value {
        RawBsonRef::Double(value) if value.is_nan() => Err(DecodeError("a NaN where a number should be".into())),
        RawBsonRef::Double(value) => Ok(value),
        RawBsonRef::Int32(value) => Ok(value.into()),
        RawBsonRef::Int64(value) => Ok(value as f64),
        other => Err(DecodeError(format!("a {:?} where a number should be", other.element_type()))),
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, doc};

    use super::*;

    #[test]
    fn elements_are_those_that_the_driver_reads() {
        let document = doc! {
            "double": -1.5, "string": "text", "document": { "a": 1 }, "array": [1, "b"], "int32": -7,
            "binary": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![0; 9] },
            "undefined": Bson::Undefined, "id": bson::oid::ObjectId::from_bytes([7; 12]), "boolean": true,
            "date": DateTime::from_millis(-5), "null": Bson::Null,
            "code": Bson::JavaScriptCode("x".into()),
            "symbol": Bson::Symbol("s".into()), "int64": i64::MAX, "min": Bson::MinKey, "max": Bson::MaxKey,
            "timestamp": Bson::Timestamp(bson::Timestamp { time: 1, increment: 2 }),
            "decimal": "1.5".parse::<bson::Decimal128>().unwrap(), "": "an empty key",
        };
        let document = RawDocumentBuf::try_from(&document).unwrap();
        let own: Vec<_> = elements(&document).map(Result::unwrap).collect();
        let of_driver: Vec<_> = document.iter().map(Result::unwrap).collect();
        assert_eq!(own.len(), of_driver.len());
        for ((own_key, own), (key, value)) in own.iter().zip(of_driver) {
            assert_eq!(*own_key, key.as_str().as_bytes());
            assert!(*own == value || *own == RawBsonRef::Undefined, "{own:?} for {value:?}");
        }
    }

    /// The bytes of a document with these elements.
    fn document_of(body: &[u8]) -> Vec<u8> {
        let length = (body.len() as i32 + 5).to_le_bytes();
        [&length[..], body, &[0]].concat()
    }

    #[test]
    fn elements_behind_types_of_no_use_are_found() {
        let regex_and_code = b"\x0Br\0^a\0i\0\x0Cp\0\x02\0\0\0d\0............\x10n\0\x07\0\0\0";
        let bytes = document_of(regex_and_code);
        let read: Vec<_> = elements(RawDocument::from_bytes(&bytes).unwrap()).map(Result::unwrap).collect();
        assert_eq!((read.len(), read[2]), (3, (&b"n"[..], RawBsonRef::Int32(7))));
    }

    #[test]
    fn malformed_elements_are_errors() {
        for body in [&b"\x01a\0short"[..], b"\x02a\0\xFF\xFF\xFF\xFF", b"\x01endless", b"\x55a\0", b"\x0Ba\0b"] {
            let bytes = document_of(body);
            let read: Vec<_> = elements(RawDocument::from_bytes(&bytes).unwrap()).collect();
            assert!(matches!(&read[..], [Err(_)]), "{body:?}");
        }
    }
}
