//! Which collections are sharded, and which shard holds a value of the shard key.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use bson::Bson;

use super::SHARDS;

/// The sharded collections, `database.collection`, with the fields they are sharded by. Each key is hashed.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) sharded: HashMap<String, String>,
}

impl Catalog {
    /// The field that a collection is sharded by, if it is.
    pub(super) fn key_of(&self, namespace: &str) -> Option<&str> {
        self.sharded.get(namespace).map(String::as_str)
    }

    pub(super) fn forget_database(&mut self, database: &str) {
        self.sharded.retain(|namespace, _| namespace.split_once('.').is_none_or(|(of, _)| of != database));
    }
}

/// The shard that holds the documents with this value of the shard key. (The hash is Rust's; MongoDB's is of
/// MD5.)
pub(super) fn shard_of(value: &Bson) -> usize {
    let mut hasher = DefaultHasher::new();
    match value {
        Bson::String(text) => text.hash(&mut hasher),
        other => other.to_string().hash(&mut hasher),
    }
    hasher.finish() as usize % SHARDS
}
