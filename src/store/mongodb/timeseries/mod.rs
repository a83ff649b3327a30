//! Time-series mode: readings as measurements of a native time-series collection.
//!
//! ```js
//! { ts: ISODate("2026-04-20T14:00:10Z"), // timeField
//!   // metaField; the shard key is meta.deviceId, hashed
//!   meta: { deviceId: "LIGHT-FL02-ZONE4", floor: 2, zone: "Zone 4" },
//!   lux: 320.0, temp: 22.4 }
//! ```
//!
//! The server packs measurements of one `meta` into buckets of its own, by column. It stores a measurement
//! twice if it is sent twice, and does not let a measurement be changed. The layout keeps the promises of
//! [`crate::store`] with these differences:
//! - Of an identity the **first** value stays, not the last: what is stored is never changed, and of pending
//!   values the first is written.
//! - Each identity is stored once if **one instance writes a device**. Two instances that write the same
//!   reading of a device at the same time may both store it; answers then contain the lower of the two
//!   values, once.
//!
//! **Identity by reading first** (`write`, `known`). Readings that are later than everything that may be
//! stored of their device are inserted at once. For other readings, and for the first write of a device after
//! a start, the store first reads what is stored. **No late inserts** (`insert_sessions`): before such a
//! read, every insert without an answer is fenced, so that it cannot take effect afterwards.
//!
//! **Deletions** are of whole devices: before version 7.0, the server deletes measurements by
//! `meta` only.
//!
//! **Stats** are folded from the measurements (`fold`). For days that have ended they are in the rollups, as
//! in bucket mode.

mod document;
mod fold;
mod known;
mod read;
mod schema;
#[cfg(test)]
mod tests;
mod times;
mod write;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bson::{RawDocumentBuf, doc};
use mongodb::Collection;

use self::known::KnownDevices;
pub(super) use self::schema::QUERY_INDEX;
use self::schema::Schema;
use super::check::{Example, Expected, Question, questions};
use super::collection::Deployment;
use super::command::Commands;
use super::connect::MongodbOptions;
use super::insert_sessions::InsertSessions;
use super::layout::Layout;
use super::statements::Verb;
use super::store::MongoStore;
use super::uri::UriError;
use crate::config::{self, Period};
use crate::model::{BucketWrite, Deletion, Hour, Keep};
use crate::store::{Deleted, StoreError, Written};

/// Readings in a native time-series collection of MongoDB.
pub type TimeseriesStore = MongoStore<Timeseries>;

/// The layout of time-series mode.
#[derive(Debug)]
pub struct Timeseries {
    /// The collection, for reading.
    measurements: Collection<RawDocumentBuf>,
    commands: Commands,
    collection: String,
    sessions: InsertSessions,
    known: KnownDevices,
    schema: Schema,
}

impl TimeseriesStore {
    /// Makes the store without asking the server for anything; see [`MongodbOptions`].
    ///
    /// # Errors
    /// When the URI is invalid.
    pub async fn connect(options: MongodbOptions, timeseries: config::Timeseries) -> Result<Self, UriError> {
        Box::pin(Self::open(options, |options, commands| Timeseries::new(options, timeseries, commands))).await
    }
}

impl Timeseries {
    fn new(options: &MongodbOptions, timeseries: config::Timeseries, commands: Commands) -> Self {
        let config::Timeseries { collection, granularity, bucket_max_span, max_known_devices } = timeseries;
        let schema = Schema {
            collection: commands.managed(&collection),
            granularity,
            max_span: bucket_max_span.map(Period::as_duration),
            retention: options.retention,
        };
        Self {
            measurements: commands.reading(&collection),
            sessions: InsertSessions::new(commands.clone(), options.rollups_collection.clone()),
            known: KnownDevices::new(max_known_devices),
            schema,
            commands,
            collection,
        }
    }
}

#[async_trait]
impl Layout for Timeseries {
    const NAME: &'static str = "mongodb-timeseries";
    const KEEPS: Keep = Keep::First;
    const IDENTITY: &'static str = "mongodb-timeseries readings";
    const STATS_ARE_STORED: bool = false;
    const DELETES_DEVICES_ONLY: Option<&'static str> =
        Some("a time-series collection of MongoDB deletes whole devices only");

    fn expiry_delay(&self) -> Duration {
        self.schema.longest_bucket()
    }

    /// Servers up to 8 list a view, and behind it the collection of their own buckets.
    fn collection_names(&self) -> Vec<String> {
        vec![self.collection.clone(), format!("system.buckets.{}", self.collection)]
    }

    async fn ensure_schema(&self, was_ensured: bool) -> Result<Deployment, StoreError> {
        self.schema.ensure(was_ensured).await
    }

    async fn shorten_expiry(&self) -> Result<(), StoreError> {
        self.schema.shorten_expiry().await
    }

    fn expected(&self) -> Expected {
        self.schema.expected()
    }

    fn questions(&self, example: &Example) -> Vec<Question> {
        questions::of_measurements(&self.collection, example)
    }

    async fn write(&self, writes: &[Arc<BucketWrite>], deployment: Deployment) -> Vec<Result<Written, StoreError>> {
        self.write_buckets(writes, deployment).await
    }

    /// After the fence, no insert that this instance has sent before takes effect any more.
    async fn delete(
        &self,
        deletion: &Deletion,
        _unanswered: &BTreeSet<Hour>,
        _deployment: Deployment,
    ) -> Result<Deleted, StoreError> {
        self.sessions.fence().await?;
        self.known.forget(&deletion.device);
        let statement = doc! { "q": { "meta.deviceId": &*deletion.device }, "limit": 0 };
        self.commands.write_document(Verb::DeleteMatching, &self.collection, &statement).await?;
        Ok(Deleted::default())
    }
}
