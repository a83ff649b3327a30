//! What a router did, for tests to look at.

use std::sync::{Mutex, PoisonError};

use bson::Document;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// A statement of an `insert`, `update` or `delete`.
    Write,
    /// A `find` or an `aggregate`.
    Read,
    /// A `shardCollection`.
    Shard,
}

/// A statement or a query, and where it went.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) verb: Verb,
    pub(crate) database: String,
    pub(crate) collection: String,
    /// Whether the collection was sharded by then.
    pub(crate) sharded: bool,
    /// What it was looking for; of an insert, the document; of `shardCollection`, the key.
    pub(crate) filter: Document,
    /// The shards it went to: none, when it was refused.
    pub(crate) shards: Vec<usize>,
}

/// Everything that was recorded.
#[derive(Debug, Default)]
pub(super) struct Record {
    all: Mutex<Vec<Recorded>>,
}

impl Record {
    pub(super) fn add(&self, recorded: Recorded) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(recorded);
    }

    pub(super) fn of(&self, database: &str) -> Vec<Recorded> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|recorded| recorded.database == database).cloned().collect()
    }
}
