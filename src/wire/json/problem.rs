//! The words in which JSON readings are refused.

use super::lexer::Kind;
pub(super) use crate::wire::problem::{Found, quoted, rejection, repeated};
use crate::wire::{Code, Rejection};

<<<<<<< HEAD
/// What was found, or why it is refused.
pub(in crate::wire) type Found<T> = Result<T, Rejection>;

/// So many names are compared with each other; more are hashed.
const FEW: usize = 16;

pub(in crate::wire) fn rejection(code: Code, detail: impl Into<String>) -> Rejection {
    Rejection { code, detail: detail.into() }
}

=======
>>>>>>> lp
pub(super) fn not_an_object(kind: Kind) -> Rejection {
    rejection(Code::InvalidJson, format!("a reading must be an object, found {kind}"))
}

pub(super) fn duplicate_key(key: &str) -> Rejection {
    rejection(Code::DuplicateKey, format!("the key {} stands twice", quoted(key)))
}

<<<<<<< HEAD
/// A name as it may stand in a detail: escaped, and cut to a length that suits an error message.
pub(in crate::wire) fn quoted(name: &str) -> String {
    match name.char_indices().nth(64) {
        Some((end, _)) => format!("{:?}...", &name[..end]),
        None => format!("{name:?}"),
    }
}

=======
>>>>>>> lp
/// Fills the slot of a key; a slot that is filled already becomes a duplicate key.
pub(in crate::wire) fn fill<T>(slot: &mut Option<Found<T>>, key: &str, found: Found<T>) {
    *slot = Some(if slot.is_none() { found } else { Err(duplicate_key(key)) });
}
