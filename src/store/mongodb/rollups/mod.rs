//! Rollups in a collection of their own: one small document per device and UTC day, for every layout.
//!
//! ```js
//! { _id: "LIGHT-FL02-ZONE4/2026-04-20",
//!   deviceId: "LIGHT-FL02-ZONE4",            // hashed shard key
//!   day: ISODate("2026-04-20T00:00:00Z"),
//!   schemaVersion: 1,
//!   // retention counts from here: an instant in the day, at a second of the device's own
//!   createdAt: ISODate("2026-04-20T07:12:31Z"),
//!   hours: { "14": { rev: 7,
//!                    firstTs: ISODate("2026-04-20T14:00:10Z"), lastTs: ISODate("2026-04-20T14:59:50Z"),
//!                    stats: { lux: { count: 360, min: 310, max: 322, sum: 113400,
//!                                    first: { ts: ISODate("2026-04-20T14:00:10Z"), value: 320 },
//!                                    last: { ts: ISODate("2026-04-20T14:59:50Z"), value: 314 } } } } } }
//! ```
//!
//! A month of hours is some thirty of these documents and hundreds of buckets. A day takes a few KiB, so
//! rollups can be kept for years.
//!
//! **Written once.** After the end of a day, each device's hours of it are inserted as one document. Until
//! then, queries read the buckets of these hours. A reading that is stored later replaces its hour in the
//! document.
//!
//! **Derived, never counted up.** An hour is written as a whole, derived from its stored readings. Its `rev`
//! grows with each change of the stored readings, and a statement changes an hour only if the stored `rev` is
//! lower. So it does not matter how often an hour is rolled up, by how many instances, together with which
//! other hours, or in which order the commands arrive: the newest state stays. When readings expire, the
//! `rev` that could be derived falls; so the rollup stays, and the readings that are left never replace it.
//! `expired.rs` has what happens when such an hour gets readings again.
//!
//! **Deleted.** An hour that a deletion has emptied has a rollup without stats, `{ rev: 9, ..., stats: {} }`.
//! It keeps older rollups from coming back; queries read it as an hour without a rollup.
//!
//! **Too large.** A document may have 16 MiB. An hour that does not fit into its day's document, or that the
//! server refuses for another reason, is left out: it has no rollup, and an older one in the document becomes
//! `{ rev: 9, tooLarge: true }`. Queries read the readings of such an hour, until they expire.
//!
//! **Packed.** With the layout `packed`, the documents of whole days have the hours as columns, in a
//! twentieth of the bytes: `metrics` and `columns` (`columns.rs`). A later correction of
//! an hour is in `hours`, as above; of an hour that is in both, the one with the higher `rev` counts. All
//! layouts read both kinds.
//!
//! The layout derives the [`HourRollup`]s; this room knows nothing of how readings are stored.

mod columns;
mod delete;
mod document;
mod expired;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod missing;
mod read;
mod write;

use std::sync::Arc;
use std::time::Duration;

use bson::RawDocumentBuf;
use mongodb::Collection;

pub(super) use self::missing::{Missing, grouped, missing, missing_from};
use super::collection::{CREATED_AT, ManagedCollection};
use super::command::Commands;
use super::plain_schema::PlainSchema;
use crate::config::BucketLayout;
use crate::store::HourStats;

/// The time that expiry waits longer, because `createdAt` is up to a day before the last reading of its
/// document.
const DAY: Duration = Duration::from_secs(86_400);

/// The rollup of an hour of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct HourRollup {
    pub(super) device: Arc<str>,
    /// Grows with each change of the stored readings of the hour.
    pub(super) rev: i64,
    /// The first instant of the hour, of any metric, in Unix milliseconds.
    pub(super) first_ts_ms: i64,
    pub(super) stats: HourStats,
    /// Whether a deletion may have removed some of the readings since an earlier derivation. This is not
    /// stored.
    pub(super) may_lack_deleted: bool,
}

impl HourRollup {
    /// Adds the rollup of other readings of the same device and hour.
    pub(super) fn add(&mut self, mut other: Self) {
        if self.is_empty() {
            std::mem::swap(self, &mut other);
        }
        self.rev += other.rev;
        self.may_lack_deleted |= other.may_lack_deleted;
        if other.is_empty() {
            return;
        }
        self.first_ts_ms = self.first_ts_ms.min(other.first_ts_ms);
        self.stats.merge(other.stats);
    }

    /// Whether a deletion has removed all readings of the hour. Its entry then has no stats: it only keeps
    /// older rollups away.
    pub(super) const fn is_empty(&self) -> bool {
        self.stats.stats.is_empty()
    }
}

/// The collection of the rollups.
#[derive(Debug)]
pub(super) struct RollupCollection {
    documents: Collection<RawDocumentBuf>,
    commands: Commands,
    managed: ManagedCollection,
    retention: Option<Duration>,
    /// The layout of new documents of whole days.
    layout: BucketLayout,
}

impl RollupCollection {
    /// Rollups are kept for `retention`; `None` keeps them forever.
    pub(super) fn new(commands: Commands, name: &str, retention: Option<Duration>, layout: BucketLayout) -> Self {
        Self { documents: commands.reading(name), managed: commands.managed(name), commands, retention, layout }
    }

    /// The schema that the options ask for.
    pub(super) fn schema(&self) -> PlainSchema {
        PlainSchema {
            collection: self.managed.clone(),
            age_field: CREATED_AT,
            expiry: self.retention.map(|retention| retention.saturating_add(DAY)),
        }
    }

    /// The name of the collection.
    pub(super) fn name(&self) -> &str {
        &self.managed.name
    }
}
