//! The shards that a filter addresses. Pure.

use std::collections::BTreeSet;

use bson::{Bson, Document};

use super::SHARDS;
use super::catalog::shard_of;

/// The shards that may have documents that match `filter`.
///
/// The collection is sharded by `key`.
pub(super) fn shards_of(filter: &Document, key: &str) -> Vec<usize> {
    match values(filter, key) {
        Some(values) => values.iter().map(shard_of).collect::<BTreeSet<usize>>().into_iter().collect(),
        None => all(),
    }
}

pub(super) fn all() -> Vec<usize> {
    (0..SHARDS).collect()
}

/// The single value of `key` that `filter` matches; `None` if it does not name one.
pub(super) fn equality(filter: &Document, key: &str) -> Option<Bson> {
    filter.iter().find_map(|(field, condition)| match condition {
        Bson::Array(clauses) if field == "$and" => {
            clauses.iter().find_map(|clause| equality(clause.as_document()?, key))
        }
        Bson::Document(operators) if field == key && is_operators(operators) => operators.get("$eq").cloned(),
        Bson::RegularExpression(_) => None,
        value if field == key => Some(value.clone()),
        _ => None,
    })
}

/// The value at a path, which may lead into embedded documents.
pub(super) fn value_at(document: &Document, path: &str) -> Bson {
    let found = match path.split_once('.') {
        Some((outer, inner)) => document.get_document(outer).ok().map(|document| value_at(document, inner)),
        None => document.get(path).cloned(),
    };
    found.unwrap_or(Bson::Null)
}

/// All values of `key` that `filter` matches.
///
/// `None`: the filter does not list them.
fn values(filter: &Document, key: &str) -> Option<Vec<Bson>> {
    let of_clause = |clause: &Bson| values(clause.as_document()?, key);
    equality(filter, key).map(|value| vec![value]).or_else(|| {
        filter.iter().find_map(|(field, condition)| match condition {
            Bson::Document(operators) if field == key => operators.get_array("$in").ok().cloned(),
            Bson::Array(clauses) if field == "$and" => clauses.iter().find_map(of_clause),
            Bson::Array(clauses) if field == "$or" => {
                clauses.iter().map(of_clause).collect::<Option<Vec<_>>>().map(|values| values.concat())
            }
            _ => None,
        })
    })
}

fn is_operators(document: &Document) -> bool {
    document.keys().next().is_some_and(|key| key.starts_with('$'))
}

#[test]
fn filters_are_sent_to_the_shards_of_their_keys() {
    use bson::doc;

    // two values on different shards
    let other = (0..100).map(|nth| format!("d{nth}")).find(|other| shard_of(&other.into()) != shard_of(&"a".into()));
    let (a, b) = ("a", other.expect("one of them"));
    let of_a = vec![shard_of(&a.into())];
    for filter in [
        doc! { "k": a, "x": { "$gt": 1 } },
        doc! { "k": { "$eq": a } },
        doc! { "k": { "$in": [a] } },
        doc! { "$and": [{ "x": 1 }, { "k": a }] },
        doc! { "$or": [{ "k": a, "x": 1 }, { "k": a, "x": 2 }] },
    ] {
        assert_eq!(shards_of(&filter, "k"), of_a, "{filter}");
    }
    for filter in [
        doc! {},
        doc! { "x": a },
        doc! { "k": { "$gte": a } },
        doc! { "k": { "$in": [a, &b] } },
        doc! { "$or": [{ "k": a }, { "x": 1 }] },
        doc! { "$or": [{ "k": a }, { "k": &b }] },
    ] {
        assert_eq!(shards_of(&filter, "k"), all(), "{filter}");
    }
    assert_eq!(value_at(&doc! { "meta": { "k": a } }, "meta.k"), a.into());
}
