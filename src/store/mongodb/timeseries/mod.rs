//! Time-series mode: readings as measurements of a native time-series collection.
//!
//! ```js
//! { ts: ISODate("2026-04-20T14:00:10Z"),                    // timeField
//!   meta: { deviceId: "LIGHT-FL02-ZONE4", floor: 2, zone: "Zone 4" }, // metaField; shard key: meta.deviceId, hashed
//!   lux: 320.0, temp: 22.4 }
//! ```
//!
//! The server packs measurements of one `meta` into buckets of its own, by column. Nothing in it keeps a
//! measurement from being stored twice, and none can be changed. This room promises what [`crate::store`]
//! asks of every store, with these differences:
//! - Of an identity the **first** value stays, not the last: what is stored is never changed, and of what is
//!   pending the first is written.
//! - It is exact for **one writer per device**. Two instances that write the same reading of a device at the
//!   same time may both store it; answers then take the lower of the two values, once.
//!
//! **Identity by looking** (`write`, `known`). What comes after everything that may be stored of a device is
//! inserted at once; the rest, and the first write of a device after a start, only after a look at what is
//! stored. **No late inserts** (`insert_sessions`): before such a look, whatever got no answer is overtaken, so that it
//! cannot take effect afterwards.
//!
//! **Stats** are folded by the server (`read`), and for hours that are over they come from the rollups, as in
//! bucket mode.

mod devices;
mod document;
mod known;
mod read;
mod rollups;
mod schema;
#[cfg(test)]
mod tests;
mod times;
mod write;

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bson::RawDocumentBuf;
use mongodb::Collection;
use mongodb::options::{CollectionOptions, ReadConcern};

use self::known::KnownDevices;
use self::schema::Schema;
use super::collection::{Deployment, ManagedCollection};
use super::command::Commands;
use super::connect::{MongodbOptions, TimeseriesOptions};
use super::errors::CAUSES;
use super::insert_sessions::InsertSessions;
use super::rollups::RollupCollection;
use super::schema_state::SchemaState;
use super::uri::UriError;
use crate::model::{BucketWrite, Contents, Hour, Keep, Metric};
use crate::store::{
    Cause, DeviceSummary, FirstReadings, HourStats, ReadingsQuery, Rollups, Store, StoreError, WriteError, Written,
};

/// Readings in a native time-series collection of MongoDB.
#[derive(Debug)]
pub struct TimeseriesStore {
    /// For reading.
    measurements: Collection<RawDocumentBuf>,
    /// For writing.
    commands: Commands,
    collection: String,
    sessions: InsertSessions,
    known: KnownDevices,
    schema: Schema,
    rollups: RollupCollection,
    schema_state: SchemaState,
}

impl TimeseriesStore {
    /// Makes the store without asking the server for anything; nothing is connected yet.
    ///
    /// # Errors
    /// When the URI is not one.
    pub async fn connect(options: MongodbOptions, timeseries: TimeseriesOptions) -> Result<Self, UriError> {
        let (database, servers) = options.database().await?;
        // As in bucket mode: what a majority acknowledged is on every primary.
        let reading = CollectionOptions::builder().read_concern(ReadConcern::local()).build();
        let commands = Commands {
            database: database.clone(),
            servers,
            timeout: options.timeout,
            query_timeout: options.query_timeout,
            unreadable: options.unreadable_readings,
        };
        let of_rollups = Commands { unreadable: options.unreadable_rollups, ..commands.clone() };
        let (collection, timeout) = (timeseries.collection, options.timeout);
        let rollups = options.rollups_collection;
        let managed = ManagedCollection { database: database.clone(), name: collection.clone(), timeout };
        let names = vec![collection.clone(), buckets_collection(&collection), rollups.clone()];
        Ok(Self {
            schema_state: SchemaState::new(managed.clone(), names),
            measurements: database.collection_with_options::<RawDocumentBuf>(&collection, reading),
            sessions: InsertSessions::new(commands.clone(), rollups.clone()),
            known: KnownDevices::new(timeseries.max_known_devices),
            rollups: RollupCollection::new(of_rollups, rollups, options.rollups_retention),
            commands,
            schema: Schema { collection: managed, span: timeseries.span, retention: options.retention },
            collection,
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

    async fn deployment(&self) -> Result<Deployment, StoreError> {
        let ensure = || async {
            let deployment = self.schema.ensure(self.schema_state.was_ensured()).await?;
            self.rollups.ensure(deployment).await?;
            Ok(deployment)
        };
        // Each step waits for the server no longer than `timeout`. All of them together may take longer, and
        // must not begin from the start each time when they do.
        self.schema_state.deployment(ensure).await
    }

    /// Takes back what was said of a write when the collection is not the one that the schema was ensured of:
    /// an insert into a missing one makes the server create a plain collection.
    async fn confirm(&self, mut outcomes: Vec<Result<Written, WriteError>>) -> Vec<Result<Written, WriteError>> {
        if outcomes.iter().all(Result::is_err) {
            return outcomes;
        }
        let error = match self.schema_state.is_unchanged().await {
            Ok(true) => return outcomes,
            Ok(false) => {
                let detail = "a collection was dropped or replaced meanwhile";
                StoreError::new(Cause::Schema, detail)
            }
            Err(error) => error,
        };
        outcomes.iter_mut().filter(|outcome| outcome.is_ok()).for_each(|outcome| *outcome = Err(error.clone().into()));
        outcomes
    }
}

/// The collection behind the view that a time-series collection is, in servers up to 8.
fn buckets_collection(collection: &str) -> String {
    format!("system.buckets.{collection}")
}

#[async_trait]
impl Store for TimeseriesStore {
    fn name(&self) -> &'static str {
        "mongodb-timeseries"
    }

    fn keeps(&self) -> Keep {
        Keep::First
    }

    fn causes(&self) -> &'static [Cause] {
        CAUSES
    }

    async fn write(&self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, WriteError>> {
        let outcomes = match self.deployment().await {
            Ok(deployment) => self.confirm(self.write_buckets(writes, deployment).await).await,
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
        Ok(self.read_newest(device).await?.map(|newest| Hour::of(newest.last_ms)))
    }

    async fn devices(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<DeviceSummary>, StoreError> {
        self.read_devices(prefix, after, limit).await
    }

    fn metadata_stays(&self) -> bool {
        true
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

    /// Nothing to do: the server expires its buckets.
    async fn expire_readings(&self, _oldest_ms: i64) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Nothing to do: the TTL index expires them on the server.
    async fn expire_rollups(&self, _oldest_ms: i64) -> Result<u64, StoreError> {
        Ok(0)
    }
}
