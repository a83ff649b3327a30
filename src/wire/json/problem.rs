//! The rejections of JSON readings.

use super::key::Key;
use super::lexer::Kind;
pub(super) use crate::wire::problem::{Parsed, invalid_time, quoted, rejection, repeated};
use crate::wire::{Code, Rejection};

pub(super) fn not_an_object(kind: Kind) -> Rejection {
    rejection(Code::InvalidJson, format!("a reading must be an object, found {kind}"))
}

pub(in crate::wire) fn duplicate_key(key: &str) -> Rejection {
    rejection(Code::DuplicateKey, format!("the key {} is duplicated", quoted(key)))
}

/// Fills the slot of a key. A second value is a duplicate key.
pub(in crate::wire) fn fill<T>(slot: &mut Option<Parsed<T>>, key: &str, found: Parsed<T>) {
    *slot = Some(if slot.is_none() { found } else { Err(duplicate_key(key)) });
}

/// The rejection of a key that an object has already, perhaps by another name.
#[cold]
pub(super) fn duplicate_of(known: Key, key: &str) -> Rejection {
    match known.names() {
        [_] => duplicate_key(key),
        names => rejection(
            Code::DuplicateKey,
            format!("the key {} is duplicated: {} are the same key", quoted(key), names.join(", ")),
        ),
    }
}

/// Fills the slot of a known key.
pub(super) fn fill_known<T>(slot: &mut Option<Parsed<T>>, known: Key, key: &str, found: Parsed<T>) {
    *slot = Some(if slot.is_none() { found } else { Err(duplicate_of(known, key)) });
}
