//! The sharded collections, and the shard of a value of the shard key.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use bson::Bson;

use super::SHARDS;

/// The sharded collections, `database.collection`, with their shard keys. Each key is one hashed field.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) sharded: HashMap<String, String>,
}

impl Catalog {
    /// The shard key of a collection; `None` if it is not sharded.
    pub(super) fn key_of(&self, namespace: &str) -> Option<&str> {
        self.sharded.get(namespace).map(String::as_str)
    }

    pub(super) fn forget_database(&mut self, database: &str) {
        self.sharded.retain(|namespace, _| namespace.split_once('.').is_none_or(|(of, _)| of != database));
    }
}

/// The shard that holds the documents with this value of the shard key.
///
/// The hash is that of Rust, where MongoDB uses MD5.
pub(super) fn shard_of(value: &Bson) -> usize {
    let mut hasher = DefaultHasher::new();
    match value {
        Bson::String(text) => text.hash(&mut hasher),
        other => other.to_string().hash(&mut hasher),
    }
    hasher.finish() as usize % SHARDS
}
