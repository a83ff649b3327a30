//! The metadata of an older document as JSON.
//!
//! A document may be removed once it is migrated. So this module refuses what JSON or a store of tidegauge
//! would alter or drop: numbers that are not finite, types that JSON lacks, and a key that occurs twice.

use std::collections::HashSet;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};
use serde_json::{Map, Value};

use super::super::decode::DecodeError;
use super::super::metadata::decode_value;
use super::instant::quoted;
use crate::model::{check_metadata_depth, check_metadata_key};

/// Adds all members of an object of the document.
pub(super) fn add_all(members: &mut Map<String, Value>, object: &RawDocument) -> Result<(), String> {
    object.iter().try_for_each(|element| {
        let (key, value) = element.map_err(|error| error.to_string())?;
        add(members, key.as_str(), value)
    })
}

/// Adds a member.
pub(super) fn add(members: &mut Map<String, Value>, key: &str, value: RawBsonRef<'_>) -> Result<(), String> {
    check_member(key, value, 1)?;
    let value = decode_value(value).map_err(|DecodeError(why)| why)?;
    members.insert(key.to_owned(), value).map_or(Ok(()), |_| Err(occurs_twice(key)))
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

/// Checks a member of the object that is the `depth`th level.
fn check_member(key: &str, value: RawBsonRef<'_>, depth: usize) -> Result<(), String> {
    check_metadata_key(key, depth).map_err(|error| error.to_string())?;
    check_value(key, value, depth + 1)
}

/// Checks the value of a key. If it is an object or an array, it is the `depth`th level.
fn check_value(key: &str, value: RawBsonRef<'_>, depth: usize) -> Result<(), String> {
    if matches!(value, RawBsonRef::Document(_) | RawBsonRef::Array(_)) {
        check_metadata_depth(depth).map_err(|error| error.to_string())?;
    }
    match value {
        RawBsonRef::Null
        | RawBsonRef::Boolean(_)
        | RawBsonRef::String(_)
        | RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_) => Ok(()),
        RawBsonRef::Double(value) if value.is_finite() => Ok(()),
        RawBsonRef::Double(value) => Err(format!("its key {} is {value}, which is not finite", quoted(key))),
        RawBsonRef::Document(object) => {
            let mut keys = HashSet::new();
            object.iter().try_for_each(|element| {
                let (key, value) = element.map_err(|error| error.to_string())?;
                check_member(key.as_str(), value, depth)?;
                if keys.insert(key.as_str()) { Ok(()) } else { Err(occurs_twice(key.as_str())) }
            })
        }
        RawBsonRef::Array(array) => array
            .into_iter()
            .try_for_each(|value| check_value(key, value.map_err(|error| error.to_string())?, depth + 1)),
        other => {
            let kind = other.element_type();
            Err(format!("its key {} has the type {kind:?}, which JSON does not have", quoted(key)))
        }
    }
}

fn occurs_twice(key: &str) -> String {
    format!("it has the key {} twice", quoted(key))
}
