//! Sorts documents by their sort keys.

use std::cmp::Ordering;

use bson::{Bson, Document};

use super::commands::number;

/// Sorts documents, each with its sort key, in the directions of `sort`.
///
/// # Errors
/// A message with the key that cannot be compared.
pub(super) fn sorted(mut keyed: Vec<(Vec<Bson>, Document)>, sort: &Document) -> Result<Vec<Document>, String> {
    if let Some(odd) = keyed.iter().flat_map(|(key, _)| key).find(|value| rank(value).is_none()) {
        return Err(format!("the mongos simulator cannot sort by {odd}"));
    }
    if let Some((key, document)) = keyed.iter().find(|(key, _)| key.len() != sort.len()) {
        return Err(format!("the mongos simulator sorts by {sort}, and a shard sent the keys {key:?} with {document}"));
    }
    let directions: Vec<bool> = sort.values().map(|direction| number(Some(direction)) < 0).collect();
    keyed.sort_by(|(one, _), (other, _)| {
        let fields = one.iter().zip(other).zip(&directions);
        let compared =
            fields.map(|((one, other), &falling)| if falling { compare(other, one) } else { compare(one, other) });
        compared.fold(Ordering::Equal, Ordering::then)
    });
    Ok(keyed.into_iter().map(|(_, document)| document).collect())
}

fn compare(one: &Bson, other: &Bson) -> Ordering {
    match (one, other) {
        (Bson::String(one), Bson::String(other)) => one.cmp(other),
        (Bson::DateTime(one), Bson::DateTime(other)) => one.cmp(other),
        (one, other) if rank(one) == Some(1) && rank(other) == Some(1) => number(Some(one)).cmp(&number(Some(other))),
        (one, other) => rank(one).cmp(&rank(other)),
    }
}

/// The order of types; `None` for types that tidegauge does not sort by.
fn rank(value: &Bson) -> Option<u8> {
    match value {
        Bson::Null => Some(0),
        Bson::Int32(_) | Bson::Int64(_) => Some(1),
        Bson::String(_) => Some(2),
        Bson::DateTime(_) => Some(3),
        _ => None,
    }
}
