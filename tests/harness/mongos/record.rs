//! The statements that a mongos has routed, for assertions.

use std::sync::{Mutex, PoisonError};

use bson::Document;

/// The kind of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// A statement of an `insert`, `update` or `delete`.
    Write,
    /// A `find` or an `aggregate`.
    Read,
    /// A `shardCollection`.
    Shard,
}

/// A statement or a query with its shards.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) verb: Verb,
    pub(crate) database: String,
    pub(crate) collection: String,
    /// Whether the collection was sharded at that time.
    pub(crate) sharded: bool,
    /// The filter; the document of an insert; the key of a `shardCollection`.
    pub(crate) filter: Document,
    /// The shards to which it was sent; empty if it was refused.
    pub(crate) shards: Vec<usize>,
}

/// All recorded statements.
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
