//! The device index in a collection of its own: one document per device, for every layout.
//!
//! ```js
//! { _id: "LIGHT-FL02-ZONE4",
//!   deviceId: "LIGHT-FL02-ZONE4",                // hashed shard key
//!   schemaVersion: 1,
//!   firstTs: ISODate("2026-04-20T14:00:10Z"),    // the first reading ever
//!   lastTs: ISODate("2026-07-31T00:00:00Z"),     // an instant of the day of the last reading, not after it
//!   metadata: { floor: 2, zone: "Zone 4" }, metadataHour: ISODate("2026-07-31T00:00:00Z"),
//!   series: { lux: { lastDay: ISODate("2026-07-31T00:00:00Z") },
//!             "cpu_usage{cpu=0}": { lastDay: ISODate("2026-07-30T00:00:00Z"), measurement: 3 } },
//!   moreSeries: true,                            // if there were too many
//!   removedUntil: ISODate("2026-07-30T00:00:00Z") } // the last day of which readings were removed
//! ```
//!
//! **Idempotent and in any order** (`document`, `change`). A statement inserts a missing document, or has
//! `$min`, `$max` and metadata. Metadata is written on the condition that the stored metadata is not of a
//! newer hour. So it does not matter how often a statement is sent, by how many instances, or in which order
//! the statements arrive, except for different metadata of one hour.
//!
//! **Only what a document lacks** (`note`) is written. The document is read first, as a majority of the
//! members has it. At the turn of a day, one statement updates many documents, except in a sharded cluster.
//!
//! **Before the bucket** (`note`). The document of a device is durable before a bucket that needs it is sent.
//!
//! **Complete, or known not to be** (`completeness`). A mark in the collection says whether the index has all
//! devices that are stored. After the collection was dropped or was not restored, answers say that they lack
//! devices, and `tidegauge check --rebuild-device-index` makes the index again from the readings and rollups
//! (`rebuild`).
//!
//! **Deletions** (`delete`) remove the document of a device without readings and rollups, and series without
//! values. No write of this instance may be in progress meanwhile: it may have found in the document all that
//! it needs. When all instances have executed the deletion, each writes again what it has noted since
//! ([`Instances::check_entry`](crate::store::Instances::check_entry)).
//!
//! `lastTs` and `lastDay` never become earlier: another instance may remember that the document has them. So
//! after a deletion, or a refused write, they may be of a day without readings. `removedUntil` says so for
//! `lastTs`.
//!
//! **Expiry.** A TTL index on `lastTs` removes a device after the last of its readings and rollups.

mod change;
mod completeness;
mod delete;
mod document;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod note;
mod read;
mod rebuild;
mod step;

pub(super) use self::delete::Correction;
pub(super) use self::read::ids_after;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::RawDocumentBuf;
use mongodb::Collection;

use super::collection::{Deployment, ManagedCollection};
use super::command::Commands;
use super::plain_schema::PlainSchema;
use crate::store::StoreError;
use crate::store::noted_devices::NotedDevices;

/// The field that expiry counts from.
const AGE_FIELD: &str = "lastTs";

/// The time that expiry waits longer: `lastTs` is of the last day, but may be its first reading; and the
/// rollups of a day expire up to a day late.
const DAYS: Duration = Duration::from_secs(2 * 86_400);

/// The collection of the device index.
#[derive(Debug)]
pub(super) struct DeviceIndex {
    documents: Collection<RawDocumentBuf>,
    /// The same collection, for reading what a majority of the members has.
    durable: Collection<RawDocumentBuf>,
    is_sharded: AtomicBool,
    commands: Commands,
    managed: ManagedCollection,
    retention: Option<Duration>,
    pub(super) noted: NotedDevices,
    known: Mutex<completeness::Known>,
}

impl DeviceIndex {
    /// Devices are kept for `retention` after their last reading; `None` keeps them forever.
    pub(super) fn new(commands: Commands, name: &str, retention: Option<Duration>) -> Self {
        Self {
            documents: commands.reading(name),
            durable: commands.durable(name),
            is_sharded: AtomicBool::new(false),
            managed: commands.managed(name),
            commands,
            retention,
            noted: NotedDevices::default(),
            known: Mutex::default(),
        }
    }

    /// Creates the collection and its index, and changes what differs from the options. The collection may be
    /// a new one, so nothing counts as written to it.
    pub(super) async fn ensure(&self, deployment: Deployment) -> Result<(), StoreError> {
        self.schema().ensure(deployment).await?;
        self.is_sharded.store(deployment == Deployment::Sharded, Ordering::SeqCst);
        self.noted.clear();
        Ok(())
    }

    /// The schema that the options ask for.
    pub(super) fn schema(&self) -> PlainSchema {
        PlainSchema {
            collection: self.managed.clone(),
            age_field: AGE_FIELD,
            expiry: self.retention.map(|retention| retention.saturating_add(DAYS)),
        }
    }

    /// The name of the collection.
    pub(super) fn name(&self) -> &str {
        &self.managed.name
    }
}
