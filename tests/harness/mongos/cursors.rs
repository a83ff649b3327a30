//! Cursors of a mongos: those of one shard, and merged results.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use bson::{Bson, Document, doc};

use super::commands::{is_ok, number, refuse};
use super::wire::Shards;

const CURSOR_NOT_FOUND: i32 = 43;

/// The documents of a batch if the client does not set a size.
const BATCH: usize = 101;

pub(super) struct Cursors {
    open: Mutex<HashMap<i64, Cursor>>,
    last: AtomicI64,
}

enum Cursor {
    /// A cursor of a shard, where it has another ID.
    Pinned { shard: usize, id: i64 },
    /// The documents that the client has not fetched yet.
    Merged { namespace: String, rest: Vec<Document> },
}

impl Cursors {
    /// Creates cursors with IDs that no other mongos gives.
    ///
    /// The driver may send the `killCursors` of a dropped cursor to any mongos.
    pub(super) fn new() -> Self {
        let first = i64::from(rand::random::<u32>()) << 20;
        Self { open: Mutex::default(), last: AtomicI64::new(first) }
    }

    /// Returns the answer of a shard, and keeps its cursor if it has one.
    pub(super) fn pin(&self, shard: usize, mut reply: Document) -> Document {
        if let Ok(cursor) = reply.get_document_mut("cursor") {
            let id = number(cursor.get("id"));
            if id != 0 {
                cursor.insert("id", self.keep(Cursor::Pinned { shard, id }));
            }
        }
        reply
    }

    /// The first batch of merged documents.
    pub(super) fn serve(&self, namespace: String, documents: Vec<Document>, batch_size: Option<i64>) -> Document {
        self.batch("firstBatch", namespace, documents, batch_size.map_or(BATCH, |size| size as usize))
    }

    /// Answers `getMore`.
    pub(super) async fn next(&self, shards: &Shards, mut body: Document) -> Document {
        let wanted = number(body.get("getMore"));
        match self.take(wanted) {
            None => refuse(CURSOR_NOT_FOUND, "CursorNotFound", &format!("cursor id {wanted} not found")),
            Some(Cursor::Pinned { shard, id }) => {
                body.insert("getMore", id);
                self.pin(shard, shards.call(shard, body).await)
            }
            Some(Cursor::Merged { namespace, rest }) => {
                let size = body.get("batchSize").map_or(usize::MAX, |size| number(Some(size)) as usize);
                self.batch("nextBatch", namespace, rest, size)
            }
        }
    }

    /// Answers `killCursors`.
    pub(super) async fn kill(&self, shards: &Shards, body: Document) -> Document {
        let ids = body.get_array("cursors").cloned().unwrap_or_default();
        for wanted in &ids {
            if let Some(Cursor::Pinned { shard, id }) = self.take(number(Some(wanted))) {
                let mut kill = body.clone();
                kill.insert("cursors", [id]);
                shards.call(shard, kill).await;
            }
        }
        doc! { "cursorsKilled": ids, "cursorsNotFound": [], "cursorsAlive": [], "cursorsUnknown": [], "ok": 1.0 }
    }

    fn batch(&self, field: &str, namespace: String, mut documents: Vec<Document>, size: usize) -> Document {
        let rest = documents.split_off(size.min(documents.len()));
        let id = if rest.is_empty() { 0 } else { self.keep(Cursor::Merged { namespace: namespace.clone(), rest }) };
        let mut cursor = doc! { "id": id, "ns": namespace };
        cursor.insert(field, documents);
        doc! { "cursor": cursor, "ok": 1.0 }
    }

    fn keep(&self, cursor: Cursor) -> i64 {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id, cursor);
        id
    }

    fn take(&self, id: i64) -> Option<Cursor> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }
}

/// All documents that a command finds on a shard.
///
/// # Errors
/// The error reply of the shard.
pub(super) async fn drain(shards: &Shards, shard: usize, command: Document) -> Result<Vec<Document>, Document> {
    let session = command.get("lsid").cloned();
    let database = command.get("$db").cloned().unwrap_or(Bson::Null);
    let mut reply = shards.call(shard, command).await;
    let mut found = Vec::new();
    loop {
        if !is_ok(&reply) {
            return Err(reply);
        }
        let cursor = reply.get_document("cursor").map_err(|_| reply.clone())?;
        let batch =
            cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch")).map_err(|_| reply.clone())?;
        found.extend(batch.iter().filter_map(Bson::as_document).cloned());
        let id = number(cursor.get("id"));
        if id == 0 {
            return Ok(found);
        }
        let namespace = cursor.get_str("ns").unwrap_or_default();
        let collection = namespace.split_once('.').map_or("", |(_, collection)| collection);
        let mut more = doc! { "getMore": id, "collection": collection, "$db": database.clone() };
        more.extend(session.clone().map(|session| ("lsid".to_owned(), session)));
        reply = shards.call(shard, more).await;
    }
}
