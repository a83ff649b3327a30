//! Runs commands and queries, and reads documents in batches. `statements` writes documents.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bson::{Document, RawDocument, RawDocumentBuf, doc};
use futures_util::StreamExt;
use mongodb::action::Find;
use mongodb::options::{CollectionOptions, Hint, ReadConcern};
use mongodb::raw_batch_cursor::{RawBatch, RawBatchCursor};
use mongodb::{Collection, Database};

use super::collection::{Deployment, ManagedCollection};
use super::decode::{DecodeError, server_integer};
use super::errors::within;
use super::servers::Servers;
use crate::config::BlockCompressor;
use crate::store::{self, Cause, StoreError};

/// The shortest limit of the wait for the answer to a ping: a server that is busy for a moment is not away.
const PING_MIN: Duration = Duration::from_secs(2);
/// The longest limit of that wait: queries should not wait long for a server that is away.
const PING_MAX: Duration = Duration::from_secs(10);

/// The time between two looks at what a majority of the members has.
const MAJORITY_INTERVAL: Duration = Duration::from_millis(100);

/// The documents of one batch in the search for the first that can be read.
const FIRST_BATCH: u32 = 16;

/// The most results of an aggregation in one batch.
const RESULTS_BATCH: u32 = 10_000;

/// The time that an aggregation over a whole collection may take.
const WHOLE_COLLECTION: Duration = Duration::from_secs(86_400);

/// The longest text that names a document in the log, in characters.
const NAMED_MAX_CHARS: usize = 200;

/// The bytes of documents after which other tasks get their turn: some milliseconds of work.
const BYTES_PER_TURN: usize = 1 << 20;

/// Sends commands to one database.
#[derive(Debug, Clone)]
pub(super) struct Commands {
    pub(super) database: Database,
    pub(super) servers: Servers,
    /// The longest wait for the answer to a command.
    pub(super) timeout: Duration,
    /// How long the server may work on one query.
    pub(super) query_timeout: Duration,
    /// How the server compresses new collections.
    pub(super) compressor: BlockCompressor,
    /// Counts the documents that reads skip.
    pub(super) unreadable: store::UnreadableDocuments,
}

impl Commands {
    /// Returns a collection to read from, with local reads of the primary.
    pub(super) fn reading(&self, collection: &str) -> Collection<RawDocumentBuf> {
        // Every primary has what a majority acknowledged, and pending forgets readings only then. So local
        // reads of the primary return each reading that is not pending any more.
        let options = CollectionOptions::builder().read_concern(ReadConcern::local()).build();
        self.database.collection_with_options(collection, options)
    }

    /// Returns a collection to read what a majority of the members has.
    pub(super) fn durable(&self, collection: &str) -> Collection<RawDocumentBuf> {
        let options = CollectionOptions::builder().read_concern(ReadConcern::majority()).build();
        self.database.collection_with_options(collection, options)
    }

    /// Returns a collection whose schema tidegauge manages.
    pub(super) fn managed(&self, collection: &str) -> ManagedCollection {
        ManagedCollection { commands: self.clone(), name: collection.to_owned() }
    }

    /// Runs a command of the database.
    pub(super) async fn run(&self, command: Document) -> Result<Document, StoreError> {
        within(self.timeout, self.database.run_command(command)).await
    }

    /// Adds to an error what an operator has to correct, as far as that is known.
    pub(super) fn explain(&self, error: StoreError) -> StoreError {
        if error.cause == Cause::Forbidden {
            return StoreError::new(error.cause, format!("{}: {}", self.grant(), error.detail));
        }
        self.servers.explain(error)
    }

    /// The mend of a command in the database that the server refuses to the user.
    pub(super) fn grant(&self) -> String {
        format!("grant readWrite and dbAdmin on {} to the user of mongodb.uri", self.database.name())
    }

    /// Checks that the server answers.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        let ping = within(ping_timeout(self.timeout), self.database.run_command(doc! { "ping": 1 }));
        ping.await.map(drop).map_err(|error| match self.servers.why_unreachable(error.cause) {
            Some(trouble) => StoreError::new(error.cause, trouble),
            None => StoreError::new(error.cause, error.with_cause()),
        })
    }

    /// Checks that the server answers while `look` runs. The result of `look` does not matter.
    pub(super) async fn ping_during<T>(
        &self,
        look: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<(), StoreError> {
        let (answer, _) = tokio::join!(self.ping(), tokio::time::timeout(ping_timeout(self.timeout), look));
        answer
    }

    /// Waits until the server executes a write to `collection`: the removal of a document that never exists.
    /// Then waits until a majority of the members has all writes of the primary, or has more writes than at
    /// the start of this wait. A mongos only has to answer, because one of its shards may be lost.
    pub(super) async fn await_writes(&self, collection: &str) -> Result<(), StoreError> {
        if Deployment::of(&self.run(doc! { "hello": 1 }).await?) == Deployment::Sharded {
            return Ok(());
        }
        self.run(no_change(collection)).await?;
        let mut before = None;
        loop {
            let hello = self.run(doc! { "hello": 1 }).await?;
            let Ok(last) = hello.get_document("lastWrite") else { return Ok(()) };
            let [written, confirmed] = ["opTime", "majorityOpTime"].map(|of| last.get(of).cloned());
            if confirmed == written || before.get_or_insert_with(|| confirmed.clone()) != &confirmed {
                return Ok(());
            }
            tokio::time::sleep(MAJORITY_INTERVAL).await;
        }
    }

    /// The size of the database's collections and indexes on disk in bytes, on all shards.
    pub(super) async fn database_bytes(&self) -> Result<u64, StoreError> {
        let stats = self.run(doc! { "dbStats": 1 }).await?;
        let total = stats.get("totalSize").and_then(server_integer).and_then(|bytes| u64::try_from(bytes).ok());
        total.ok_or_else(|| StoreError::new(Cause::Other, "the reply to dbStats has no totalSize"))
    }

    /// Runs an aggregation and calls `visit` with each result. The server ends it after it has worked for
    /// `max_time` on all replies together, if that is given; the wait for one reply has a limit anyway.
    pub(super) async fn each_result(
        &self,
        collection: &Collection<RawDocumentBuf>,
        pipeline: Vec<Document>,
        max_time: Option<Duration>,
        mut visit: impl FnMut(&RawDocument) -> Result<(), DecodeError>,
    ) -> Result<(), StoreError> {
        let visit = |result: &RawDocument| visit(result).map(ControlFlow::Continue);
        let mut aggregate = collection.aggregate(pipeline).batch_size(RESULTS_BATCH);
        if let Some(max_time) = max_time {
            aggregate = aggregate.max_time(max_time);
        }
        self.each_of(within(self.timeout, aggregate.batch()).await?, visit).await
    }

    /// Returns the different texts that a field has in all documents, in any order.
    ///
    /// The first reply may take up to a day.
    pub(super) async fn distinct(
        &self,
        collection: &Collection<RawDocumentBuf>,
        field: &str,
    ) -> Result<Vec<Arc<str>>, StoreError> {
        let group = doc! { "$group": { "_id": field } };
        let aggregate = collection.aggregate([group]).allow_disk_use(true).batch_size(RESULTS_BATCH);
        let cursor = within(WHOLE_COLLECTION, aggregate.batch()).await?;
        let mut texts = Vec::new();
        let visit = |result: &RawDocument| {
            texts.push(result.get_str("_id")?.into());
            Ok(ControlFlow::Continue(()))
        };
        self.each_of(cursor, visit).await?;
        Ok(texts)
    }

    /// Runs an aggregation that walks along the index of `_id`s, and returns as many of its first results as
    /// one reply of the server has, at most 16 MiB.
    pub(super) async fn first_results(
        &self,
        collection: &Collection<RawDocumentBuf>,
        pipeline: Vec<Document>,
    ) -> Result<Option<RawBatch>, StoreError> {
        let aggregate = collection.aggregate(pipeline).hint(Hint::Keys(doc! { "_id": 1 }));
        let aggregate = aggregate.max_time(self.timeout).batch_size(RESULTS_BATCH);
        self.next_batch(&mut within(self.timeout, aggregate.batch()).await?).await
    }

    /// Makes the server end a query after `query_timeout`. The server does not notice that a client has
    /// stopped waiting.
    pub(super) fn limited<'f, T: Send + Sync>(&self, find: Find<'f, T>) -> Find<'f, T> {
        find.max_time(self.query_timeout)
    }

    /// Runs a query and calls `visit` with each document, until it breaks. Counts and logs the documents that
    /// `visit` cannot read, and skips them.
    pub(super) async fn each_document(
        &self,
        find: Find<'_, RawDocumentBuf>,
        visit: impl FnMut(&RawDocument) -> Result<ControlFlow<()>, DecodeError>,
    ) -> Result<(), StoreError> {
        self.each_of(within(self.timeout, find.batch()).await?, visit).await
    }

    /// Runs a query and calls `visit` with all documents, as [`Self::each_document`] does.
    pub(super) async fn all_documents(
        &self,
        find: Find<'_, RawDocumentBuf>,
        mut visit: impl FnMut(&RawDocument) -> Result<(), DecodeError>,
    ) -> Result<(), StoreError> {
        self.each_document(find, |document| visit(document).map(ControlFlow::Continue)).await
    }

    async fn each_of(
        &self,
        mut cursor: RawBatchCursor,
        mut visit: impl FnMut(&RawDocument) -> Result<ControlFlow<()>, DecodeError>,
    ) -> Result<(), StoreError> {
        let mut bytes = 0;
        while let Some(batch) = self.next_batch(&mut cursor).await? {
            for document in documents(&batch)? {
                let document = document?;
                let visited = visit(document).unwrap_or_else(|error| {
                    self.unreadable.skip(|| id_of(document), &error);
                    ControlFlow::Continue(())
                });
                if visited.is_break() {
                    return Ok(());
                }
                bytes += document.as_bytes().len();
                if bytes > BYTES_PER_TURN {
                    bytes = 0;
                    tokio::task::yield_now().await;
                }
            }
        }
        Ok(())
    }

    async fn next_batch(&self, cursor: &mut RawBatchCursor) -> Result<Option<RawBatch>, StoreError> {
        within(self.timeout, async { cursor.next().await.transpose() }).await
    }

    /// The first document of a query for which `read` returns `Some`. As a rule that is the very first
    /// document, so the query asks for one document. If that is not enough, `find` builds the query again.
    pub(super) async fn first_readable<'q, T>(
        &self,
        find: impl Fn() -> Find<'q, RawDocumentBuf>,
        mut read: impl FnMut(&RawDocument) -> Result<Option<T>, DecodeError>,
    ) -> Result<Option<T>, StoreError> {
        for query in [find().limit(1), find().batch_size(FIRST_BATCH)] {
            let (mut found, mut is_empty) = (None, true);
            let visit = |document: &RawDocument| {
                is_empty = false;
                found = read(document)?;
                Ok(if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            };
            self.each_document(self.limited(query), visit).await?;
            if found.is_some() || is_empty {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// A write that changes nothing: the removal of a document that never exists.
pub(super) fn no_change(collection: &str) -> Document {
    let removal = doc! { "q": { "_id": { "stop": 1 } }, "limit": 1 };
    doc! { "delete": collection, "deletes": [removal] }
}

/// The documents in the first batch of a reply with a cursor.
pub(super) fn first_batch(reply: &Document) -> Vec<Document> {
    let first = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    first.into_iter().flatten().filter_map(|found| found.as_document().cloned()).collect()
}

/// The documents of a batch.
pub(super) fn documents(
    batch: &RawBatch,
) -> Result<impl Iterator<Item = Result<&RawDocument, DecodeError>>, DecodeError> {
    let elements = batch.doc_slices().map_err(|error| DecodeError(error.to_string()))?;
    Ok(elements.into_iter().map(|element| {
        element?.as_document().ok_or_else(|| DecodeError("a batch has an element that is not a document".into()))
    }))
}

/// The `_id` of a document, or the document itself if the query leaves the `_id` out.
pub(super) fn id_of(document: &RawDocument) -> String {
    let named = match document.get("_id") {
        Ok(Some(id)) => format!("_id {id:?}"),
        _ => format!("{document:?}"),
    };
    named.chars().take(NAMED_MAX_CHARS).collect()
}

/// Returns the longest wait for the answer to a ping: a third of that for another command, within bounds.
fn ping_timeout(timeout: Duration) -> Duration {
    (timeout / 3).clamp(PING_MIN, PING_MAX).min(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_may_take_a_third_of_the_time_for_a_command() {
        for (timeout_ms, ping_ms) in [(1, 1), (2_000, 2_000), (5_000, 2_000), (15_000, 5_000), (30_000, 10_000)] {
            assert_eq!(ping_timeout(Duration::from_millis(timeout_ms)), Duration::from_millis(ping_ms));
        }
        assert_eq!(ping_timeout(Duration::from_secs(3_600)), PING_MAX);
    }
}
