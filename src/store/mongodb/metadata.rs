//! Converts the metadata of a device: a JSON object for clients, a sub-document in the database.
//!
//! Whole numbers are stored as integers, so that they look the same in mongosh. [`names`] maps the keys.

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};
use serde_json::{Map, Value};

use super::decode::DecodeError;
use super::encode::{Encoder, Key};
use super::names;
use crate::store::{Cause, StoreError};

/// Parses the text of a JSON object.
///
/// # Errors
/// Permanent, when it is not the text of a JSON object.
pub(super) fn parse(text: &str) -> Result<Map<String, Value>, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::new(Cause::Metadata, format!("not a JSON object: {error}")))
}

/// Writes metadata as a sub-document.
pub(super) fn encode(encoder: &mut Encoder, key: impl Key, metadata: &Map<String, Value>) {
    encoder.document(key, |object| encode_fields(object, metadata));
}

/// Writes these members of an object as fields of the document that is being filled.
pub(super) fn encode_fields<'a>(object: &mut Encoder, members: impl IntoIterator<Item = (&'a String, &'a Value)>) {
    members.into_iter().for_each(|(key, value)| encode_value(object, &*names::stored(key), value));
}

/// Writes a JSON value.
pub(super) fn encode_value(encoder: &mut Encoder, key: impl Key, value: &Value) {
    match value {
        Value::Null => encoder.null(key),
        Value::Bool(value) => encoder.boolean(key, *value),
        Value::String(value) => encoder.string(key, value),
        Value::Object(object) => encode(encoder, key, object),
        Value::Array(values) => encoder.array(key, |array| {
            values.iter().enumerate().for_each(|(at, value)| encode_value(array, at, value));
        }),
        Value::Number(number) => match number.as_i64().map(|whole| (whole, i32::try_from(whole))) {
            Some((_, Ok(small))) => encoder.int32(key, small),
            Some((large, Err(_))) => encoder.int64(key, large),
            None => encoder.double(key, number.as_f64().expect("a JSON number without a fraction fits a double")),
        },
    }
}

/// Reads the object that a sub-document holds.
pub(super) fn decode(document: &RawDocument) -> Result<Map<String, Value>, DecodeError> {
    let entries = document.iter().map(|element| {
        let (key, value) = element?;
        Ok((names::original(key.as_str()).into_owned(), decode_value(value)?))
    });
    entries.collect()
}

/// The JSON text of an object.
pub(super) fn to_text(metadata: Map<String, Value>) -> Arc<str> {
    Value::from(metadata).to_string().into()
}

/// The JSON of a value. A number that is not finite becomes null.
pub(super) fn decode_value(value: RawBsonRef<'_>) -> Result<Value, DecodeError> {
    Ok(match value {
        RawBsonRef::Null => Value::Null,
        RawBsonRef::Boolean(value) => value.into(),
        RawBsonRef::String(value) => value.into(),
        RawBsonRef::Int32(value) => value.into(),
        RawBsonRef::Int64(value) => value.into(),
        RawBsonRef::Double(value) => value.into(),
        RawBsonRef::Document(document) => decode(document)?.into(),
        RawBsonRef::Array(array) => {
            let values = array.into_iter().map(|value| decode_value(value?));
            values.collect::<Result<Vec<Value>, DecodeError>>()?.into()
        }
        other => return Err(DecodeError(format!("metadata has a value of type {:?}", other.element_type()))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_as_it_was_written() {
        let text = r#"{"$a.b":{"c.d":[1,null,{"e.f":true}]},"big":5000000000,"floor":2,"huge":1e300,"lat":51.5}"#;
        let parsed = parse(text).unwrap();
        let document = Encoder::build(|top| encode(top, "metadata", &parsed));
        let stored = document.get_document("metadata").unwrap();
        assert_eq!(decode(stored).unwrap(), parsed);
        assert_eq!(stored.get_i32("floor").unwrap(), 2);
        assert!(stored.get_document("\u{FF04}a\u{FF0E}b").is_ok());
    }

    #[test]
    fn metadata_that_is_no_object_is_a_permanent_error() {
        for text in ["", "[]", "1", "{"] {
            assert_eq!(parse(text).unwrap_err().cause, Cause::Metadata, "{text}");
        }
    }
}
