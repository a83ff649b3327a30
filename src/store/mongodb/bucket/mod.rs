//! Bucket mode: one document holds the readings of one device in one UTC hour, and their stats.
//!
//! ```js
//! { _id: "LIGHT-FL02-ZONE4/2026-04-20T14",   // + "/1", "/2" for overflow parts
//!   deviceId: "LIGHT-FL02-ZONE4",            // hashed shard key
//!   bucket: ISODate("2026-04-20T14:00:00Z"), // the hour, UTC
//!   part: 0, schemaVersion: 1, rev: 7,       // rev: +1 at each write
//!   createdAt: ISODate("2026-04-20T14:23:07Z"), // where retention counts from: inside the hour, the device's own second
//!   metadata: { floor: 2, zone: "Zone 4" },  // when known
//!   readingCount: 360, bytes: 14110,         // what the readings and stats take, at most
//!   firstTs: ISODate(...), lastTs: ISODate(...),
//!   stats: { lux: { count: 360, min: 310, max: 322, sum: 113400 } },
//!   readings: [ { ts: ISODate("2026-04-20T14:00:10Z"), lux: 320 }, ... ] }
//! ```
//!
//! Anyone can read that with mongosh, Compass or an aggregation. This room promises what [`crate::store`]
//! asks of every store, with no bookkeeping beside the document itself, whatever happens to commands on their
//! way:
//!
//! **Fast path** (`fast`, `statement`). One statement of an `update` command appends a flush to its document,
//! on the condition that `lastTs` is before the flush's first reading, that there is room by count and by
//! bytes (`capacity`), and that the document is not marked `full`. Otherwise the statement does nothing and
//! says 11000, duplicate key. So a command that times out and lands late finds `lastTs` past its first
//! reading and does nothing, and so does a resend, a replay after a crash, and the slower of two instances.
//!
//! What this instance takes for the first flush of its bucket (`recent_buckets`) it inserts, for a sixth of what such
//! an upsert costs the server. When the document is there already, that too says 11000, and the flush is
//! appended.
//!
//! **Slow path** (`slow`, `plan`). For the buckets whose statement said 11000: read the parts, merge by
//! identity, write back what changed on the condition that its `rev` is unchanged, and spill into a new part
//! where there is no room. Which buckets have more than one part is remembered (`overflow`): later flushes
//! are appended to the last part, and when that is full, it alone is read. Late and resent readings of such a
//! bucket cost the reading of all its parts.
//!
//! **Why `full`.** The fast path of another instance may know part 0 only. Once part 1 exists, nothing new
//! may be appended to part 0, for the readings may be in part 1 already; and that must hold when the capacity
//! is raised later, or when two instances disagree on it. A part is therefore marked `full` before its
//! successor is made, and the mark is never taken back. Because of it, every part but the last holds the same
//! instants forever, and parts that were read one after the other can be merged as if they had been read at
//! once. For the same reason `lastTs` never falls from part to part, even when a later part holds older
//! readings: each speaks for the bucket up to itself.
//!
//! **Rollups** (`rollups`). The `stats` and `rev` of a bucket's parts are what its hour's rollup is derived
//! from, in the collection that all modes share. Queries ask that first (`read`).
//!
//! `stats.<metric>.sum` is added to by the fast path, which rounds it once for each append, and folded anew
//! by the slow one. Values above 1e290 take the slow path, because a sum that an append made infinite would
//! stay so.

#[cfg(any(test, feature = "bench"))]
pub(super) mod bench;
mod capacity;
mod devices;
mod document;
mod fast;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod overflow;
mod plan;
mod read;
mod recent_buckets;
mod rollups;
mod schema;
mod slow;
mod statement;
#[cfg(test)]
pub(super) mod tests;

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bson::RawDocumentBuf;
use metrics::Counter;
use mongodb::Collection;
use mongodb::options::{CollectionOptions, ReadConcern};

use self::capacity::Capacity;
use self::overflow::Overflowing;
use self::recent_buckets::RecentBuckets;
use self::schema::Schema;
use super::MongodbOptions;
use super::collection::{Deployment, ManagedCollection};
use super::command::Commands;
use super::errors::CAUSES;
use super::rollups::RollupCollection;
use super::schema_state::SchemaState;
use super::uri::UriError;
use crate::model::{BucketWrite, Contents, Hour, Metric};
use crate::store::{
    Cause, DeviceSummary, FirstReadings, HourStats, ReadingsQuery, Rollups, Store, StoreError, WriteError, Written,
};

/// Buckets in a MongoDB collection.
#[derive(Debug)]
pub struct BucketStore {
    /// For reading.
    documents: Collection<RawDocumentBuf>,
    /// For writing.
    commands: Commands,
    collection: String,
    capacity: Capacity,
    recent: RecentBuckets,
    overflowing: Overflowing,
    slow_writes: Counter,
    schema: Schema,
    rollups: RollupCollection,
    schema_state: SchemaState,
}

impl BucketStore {
    /// Makes the store without asking the server for anything; see [`MongodbOptions`].
    ///
    /// # Errors
    /// When the URI is not one.
    pub async fn connect(options: MongodbOptions) -> Result<Self, UriError> {
        let (database, servers) = options.database().await?;
        // What a majority acknowledged is on every primary, and pending is dropped only then: local reads of
        // the primary show each reading that is not pending any more.
        let reading = CollectionOptions::builder().read_concern(ReadConcern::local()).build();
        let commands = Commands {
            database: database.clone(),
            servers,
            timeout: options.timeout,
            query_timeout: options.query_timeout,
            unreadable: options.unreadable_readings,
        };
        let of_rollups = Commands { unreadable: options.unreadable_rollups, ..commands.clone() };
        let timeout = options.timeout;
        let collection = ManagedCollection { database: database.clone(), name: options.collection.clone(), timeout };
        let names = vec![options.collection.clone(), options.rollups_collection.clone()];
        Ok(Self {
            documents: database.collection_with_options::<RawDocumentBuf>(&options.collection, reading),
            schema_state: SchemaState::new(collection.clone(), names),
            rollups: RollupCollection::new(of_rollups, options.rollups_collection, options.rollups_retention),
            commands,
            schema: Schema { collection, retention: options.retention, validate: options.validate },
            collection: options.collection,
            capacity: Capacity::new(options.max_readings_per_document, options.max_document_bytes),
            recent: RecentBuckets::default(),
            overflowing: Overflowing::default(),
            slow_writes: options.slow_writes,
        })
    }

    /// Creates the collections and their indexes, and changes what differs from the options. Every write does
    /// this first, until it has succeeded once, and again when a collection was dropped; calling it at the
    /// start only shows trouble earlier.
    ///
    /// # Errors
    /// When the server does not answer or refuses.
    pub async fn ensure_schema(&self) -> Result<(), StoreError> {
        self.deployment().await?;
        Ok(())
    }

    /// What kind of server this is, once the schema is there.
    async fn deployment(&self) -> Result<Deployment, StoreError> {
        let ensure = || async {
            let deployment = self.schema.ensure().await?;
            self.rollups.ensure(deployment).await?;
            Ok(deployment)
        };
        // Each step waits for the server no longer than `timeout`. All of them together may take longer, and
        // must not begin from the start each time when they do.
        self.schema_state.deployment(ensure).await
    }
}

#[async_trait]
impl Store for BucketStore {
    fn name(&self) -> &'static str {
        "mongodb"
    }

    fn causes(&self) -> &'static [Cause] {
        CAUSES
    }

    async fn write(&self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, WriteError>> {
        let outcomes = match self.deployment().await {
            Ok(_) => self.write_buckets(writes).await,
            Err(error) => vec![Err(error.into()); writes.len()],
        };
        outcomes.into_iter().map(|outcome| outcome.map_err(|error| self.commands.servers.explain(error))).collect()
    }

    async fn hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: Range<Hour>,
        metrics: &[Metric],
    ) -> Result<Vec<Vec<HourStats>>, StoreError> {
        self.read_hour_stats(devices, &hours, metrics).await
    }

    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError> {
        self.read_readings(query).await
    }

    async fn latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError> {
        self.read_latest(device, hour).await
    }

    async fn last_hour(&self, device: &str) -> Result<Option<Hour>, StoreError> {
        self.read_last_hour(device).await
    }

    async fn devices(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<DeviceSummary>, StoreError> {
        self.read_devices(prefix, after, limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.commands.ping_during(self.schema_state.is_unchanged()).await
    }

    async fn bytes(&self) -> Result<u64, StoreError> {
        self.commands.database_bytes().await
    }

    fn rollups(&self) -> Option<&dyn Rollups> {
        Some(self)
    }

    /// Nothing to do: the TTL index expires buckets on the server.
    async fn expire_readings(&self, _oldest_ms: i64) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Nothing to do, as above.
    async fn expire_rollups(&self, _oldest_ms: i64) -> Result<u64, StoreError> {
        Ok(0)
    }
}
