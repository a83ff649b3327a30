//! Bucket mode: one document holds the readings of one device in one UTC hour, and their stats.
//!
//! ```js
//! { _id: "LIGHT-FL02-ZONE4/2026-04-20T14",   // + "/1", "/2" for overflow parts
//!   deviceId: "LIGHT-FL02-ZONE4",            // hashed shard key
//!   bucket: ISODate("2026-04-20T14:00:00Z"), // the hour, UTC
//!   part: 0, schemaVersion: 1, rev: 7,       // rev: +1 at each write
//!   // retention counts from here: an instant in the hour, at a second of the device's own
//!   createdAt: ISODate("2026-04-20T14:23:07Z"),
//!   metadata: { floor: 2, zone: "Zone 4" },  // when known
//!   readingCount: 360, bytes: 14187,         // an upper bound of the size of readings and stats
//!   firstTs: ISODate(...), lastTs: ISODate(...),
//!   stats: { lux: { count: 360, min: 310, max: 322, sum: 113400,
//!                   first: { ts: ISODate("2026-04-20T14:00:10Z"), value: 320 },
//!                   last: { ts: ISODate("2026-04-20T14:59:50Z"), value: 314 } } },
//!   readings: [ { ts: ISODate("2026-04-20T14:00:10Z"), lux: 320 }, ... ] }
//! ```
//!
//! This is the readable layout: people can read these documents with mongosh, Compass or an aggregation. In
//! the packed layout (`packed`), the readings are columns, and each flush is an insert. Both may be in one
//! collection; an instance writes one of them, and reads both.
//!
//! The readable layout keeps the promises of [`crate::store`] without bookkeeping beside the document itself,
//! whatever happens to commands on their way:
//!
//! **Fast path** (`fast`). One statement of an `update` command appends a flush to its document, on the
//! condition that `lastTs` is before the flush's first reading, that the document has room by count and by
//! bytes (`capacity`), and that it is not marked `full`. Otherwise the statement does nothing and returns
//! 11000, duplicate key. So a command that times out and arrives late finds `lastTs` past its first reading
//! and does nothing. The same holds for a resend, for a replay after a crash, and for the slower of two
//! instances.
//!
//! A flush that is probably the first of its bucket (`recent_buckets`) is inserted, which costs the server a
//! sixth of such an upsert. If the document exists already, the insert returns 11000 too, and the flush is
//! appended. In its first hour, an instance first looks up which documents exist.
//!
//! **Slow path** (`slow`, `plan`). It handles the buckets whose statement returned 11000: it reads the parts,
//! merges by identity, writes back each changed part on the condition that its `rev` is unchanged, and adds a
//! part where the last one is full. The store remembers which buckets have more than one part (`overflow`):
//! it appends later flushes to the last part, and when that is full, it reads that part alone. For late and
//! resent readings of such a bucket it reads all parts.
//!
//! **The mark `full`.** The fast path of another instance may know part 0 only. Once part 1 exists, nothing
//! new may be appended to part 0, for the readings may be in part 1 already. That must hold when the capacity
//! is raised later, and when two instances disagree on it. A part is therefore marked `full` before its
//! successor is created, and the mark is never removed. So every part but the last holds the same instants
//! forever, and parts that were read one after the other can be merged as if they had been read at once. For
//! the same reason `lastTs` never falls from part to part, even when a later part holds older readings: the
//! `lastTs` of a part covers that part and all parts before it.
//!
//! **Deletions** (`delete`) empty documents, and do not remove them, so that a late command finds its `_id`
//! taken and its `rev` higher.
//!
//! **Rollups** (`rollups`). The rollup of an hour is derived from the `stats` and `rev` of the bucket's
//! parts. All layouts share one collection of rollups, which queries read first.
//!
//! The fast path adds to `stats.<metric>.sum` and rounds it once for each append; the slow path computes it
//! anew. Values above 1e290 take the slow path, because a sum that an append made infinite would stay so.

#[cfg(any(test, feature = "bench"))]
pub(super) mod bench;
mod capacity;
mod delete;
mod devices;
mod document;
mod fast;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod overflow;
mod packed;
mod plan;
mod read;
mod recent_buckets;
mod rollups;
mod schema;
mod slow;
#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bson::RawDocumentBuf;
use metrics::Counter;
use mongodb::Collection;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::capacity::Capacity;
use self::overflow::Overflowing;
use self::packed::{KnownParts, view};
use self::recent_buckets::RecentBuckets;
use self::schema::Schema;
use super::check::{Example, Expected, Question, questions};
use super::collection::Deployment;
use super::command::Commands;
use super::connect::MongodbOptions;
use super::layout::Layout;
use super::store::MongoStore;
use super::uri::UriError;
use crate::config::BucketLayout;
use crate::model::{BucketWrite, Deletion, Hour, Keep};
use crate::store::{Deleted, StoreError, Written};

/// How long an instance remembers a bucket at least.
///
/// Most buckets are only written to within their hour. An instance that started more recently than this looks
/// up which buckets exist.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// Readings in MongoDB as one document per device and hour.
pub type BucketStore = MongoStore<Buckets>;

/// The layout of bucket mode.
#[derive(Debug)]
pub struct Buckets {
    /// The collection, for queries.
    documents: Collection<RawDocumentBuf>,
    commands: Commands,
    collection: String,
    capacity: Capacity,
    /// The layout of the documents that this instance writes. It reads both.
    layout: BucketLayout,
    opened: Instant,
    /// The buckets that this instance first wrote to lately.
    ///
    /// The readable layout inserts a flush whose bucket is not here.
    recent: RecentBuckets,
    /// The last parts of readable buckets with several parts, and of packed ones with too many parts for
    /// `known`.
    overflowing: Overflowing,
    /// The last parts of buckets. The packed layout inserts the parts after them.
    known: KnownParts,
    /// The one permit to merge an hour of very many values, which take much memory.
    large_hours: Semaphore,
    slow_writes: Counter,
    schema: Schema,
}

impl BucketStore {
    /// Makes the store without asking the server for anything; see [`MongodbOptions`].
    ///
    /// # Errors
    /// When the URI is invalid.
    pub async fn connect(options: MongodbOptions) -> Result<Self, UriError> {
        Box::pin(Self::open(options, Buckets::new)).await
    }
}

impl Buckets {
    fn new(options: &MongodbOptions, commands: Commands) -> Self {
        let collection = commands.managed(&options.collection);
        Self {
            documents: commands.reading(&options.collection),
            commands,
            schema: Schema { collection, retention: options.retention, validate: options.validate },
            collection: options.collection.clone(),
            capacity: Capacity::new(options.max_readings_per_document, options.max_document_bytes),
            layout: options.layout,
            opened: Instant::now(),
            recent: RecentBuckets::default(),
            overflowing: Overflowing::default(),
            known: KnownParts::default(),
            large_hours: Semaphore::new(1),
            slow_writes: options.slow_writes.clone(),
        }
    }
}

#[async_trait]
impl Layout for Buckets {
    const NAME: &'static str = "mongodb";
    const KEEPS: Keep = Keep::Last;
    const IDENTITY: &'static str = "mongodb buckets";
    const STATS_ARE_STORED: bool = true;
    const DELETES_DEVICES_ONLY: Option<&'static str> = None;

    fn expiry_delay(&self) -> Duration {
        schema::HOUR
    }

    fn collection_names(&self) -> Vec<String> {
        vec![self.collection.clone()]
    }

    async fn ensure_schema(&self, _was_ensured: bool) -> Result<Deployment, StoreError> {
        self.known.forget(); // the collection may have been dropped
        let deployment = self.schema.ensure().await?;
        if self.layout == BucketLayout::Packed {
            view::ensure(&self.schema.collection).await;
        }
        Ok(deployment)
    }

    async fn shorten_expiry(&self) -> Result<(), StoreError> {
        self.schema.ensure_expiry(true).await
    }

    fn expected(&self) -> Expected {
        self.schema.expected()
    }

    fn questions(&self, example: &Example) -> Vec<Question> {
        questions::of_buckets(&self.collection, example)
    }

    async fn write(&self, writes: &[Arc<BucketWrite>], deployment: Deployment) -> Vec<Result<Written, StoreError>> {
        self.write_buckets(writes, deployment).await
    }

    async fn delete(
        &self,
        deletion: &Deletion,
        unanswered: &BTreeSet<Hour>,
        deployment: Deployment,
    ) -> Result<Deleted, StoreError> {
        self.delete_readings(deletion, unanswered, deployment).await
    }
}
