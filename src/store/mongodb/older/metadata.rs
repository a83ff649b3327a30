//! The metadata of an older document as JSON.
//!
//! A document may be removed once it is migrated. So this refuses what JSON or a store of tidegauge would
//! alter or drop: numbers that are not finite, types that JSON lacks, and a key that occurs twice.

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};
use serde_json::{Map, Number, Value};

use super::instant::quoted;
use crate::model::{check_metadata_depth, check_metadata_key};

/// Adds all members of an object of the document.
pub(super) fn add_all(members: &mut Map<String, Value>, object: &RawDocument) -> Result<(), String> {
    put_all(members, object, 1)
}

/// Adds a member.
pub(super) fn add(members: &mut Map<String, Value>, key: &str, value: RawBsonRef<'_>) -> Result<(), String> {
    put(members, key, value, 1)
}

/// The text of the metadata; `None` if there is none.
pub(super) fn to_text(members: Map<String, Value>, max_bytes: usize) -> Result<Option<Arc<str>>, String> {
    if members.is_empty() {
        return Ok(None);
    }
    let text = Value::Object(members).to_string();
    if text.len() > max_bytes {
        return Err(format!("it has {} bytes, and ingest.max_metadata_bytes is {max_bytes}", text.len()));
    }
    Ok(Some(text.into()))
}

fn put_all(members: &mut Map<String, Value>, object: &RawDocument, depth: usize) -> Result<(), String> {
    object.iter().try_for_each(|element| {
        let (key, value) = element.map_err(|error| error.to_string())?;
        put(members, key.as_str(), value, depth)
    })
}

fn put(members: &mut Map<String, Value>, key: &str, value: RawBsonRef<'_>, depth: usize) -> Result<(), String> {
    check_metadata_key(key, depth).map_err(|error| error.to_string())?;
    match members.insert(key.to_owned(), json(key, value, depth + 1)?) {
        None => Ok(()),
        Some(_) => Err(format!("it has the key {} twice", quoted(key))),
    }
}

/// The JSON of a value; an object or array in it is the `depth`th level.
fn json(key: &str, value: RawBsonRef<'_>, depth: usize) -> Result<Value, String> {
    let is_level = matches!(value, RawBsonRef::Document(_) | RawBsonRef::Array(_));
    if is_level {
        check_metadata_depth(depth).map_err(|error| error.to_string())?;
    }
    Ok(match value {
        RawBsonRef::Null => Value::Null,
        RawBsonRef::Boolean(value) => value.into(),
        RawBsonRef::String(value) => value.into(),
        RawBsonRef::Int32(value) => value.into(),
        RawBsonRef::Int64(value) => value.into(),
        RawBsonRef::Double(value) => Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| format!("its key {} is {value}, which is not finite", quoted(key)))?,
        RawBsonRef::Document(object) => {
            let mut members = Map::new();
            put_all(&mut members, object, depth)?;
            members.into()
        }
        RawBsonRef::Array(array) => {
            let values = array.into_iter().map(|value| json(key, value.map_err(|error| error.to_string())?, depth + 1));
            values.collect::<Result<Vec<Value>, String>>()?.into()
        }
        other => {
            let kind = other.element_type();
            return Err(format!("its key {} has the type {kind:?}, which JSON does not have", quoted(key)));
        }
    })
}
