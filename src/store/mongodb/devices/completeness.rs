//! The mark of an index that has all devices.
//!
//! ```js
//! { _id: { index: 1 }, deviceId: "(index)", schemaVersion: 1,
//!   epoch: ObjectId("..."),   // of this collection: a new one gets another
//!   complete: true }          // the index has all devices that are stored
//! ```
//!
//! The first instance that finds no mark adds one with a new epoch, which is not complete. The mark becomes
//! complete while nothing is stored, or at the end of a rebuild, and stays complete. No stored device is
//! missing from a complete index, because:
//!
//! - **Writes.** A write counts as stored only if the collections have been the same from before its entry
//!   was noted until after its bucket was written (`MongoStore::confirm`). Otherwise the instance repeats
//!   the write, and notes the entry in the new collection. So the index has each device that any instance
//!   has stored since the collection was created. Until then, the readings of the write are pending in the
//!   log of the instance.
//! - **Nothing is stored.** An instance reads the epoch, and then asks whether anything is stored. If
//!   nothing is, all devices that are stored later are stored while this collection exists.
//! - **Rebuild.** A rebuild reads the epoch, and then lists the devices that are stored. All devices that
//!   are stored later are stored while this collection exists.
//! - **Another drop meanwhile.** The update that makes a mark complete names its epoch, and inserts nothing.
//!   If the collection was dropped meanwhile, the update matches nothing, and the index stays incomplete.
//!
//! A reader asks for the mark after it has read the index (`in_index`), and compares it with a complete
//! mark that it knew before. So an answer never counts as complete because of a mark that is gone, or that
//! was made complete later.

use std::sync::{MutexGuard, PoisonError};

use bson::oid::ObjectId;
use bson::{Document, RawDocument, doc};

use super::super::layout::Layout;
use super::super::statements::Verb;
use super::super::store::MongoStore;
use super::DeviceIndex;
use super::document::SCHEMA_VERSION;
use crate::common::once_per_change::OncePerChange;
use crate::model::Hour;
use crate::store::device_index::REBUILD;
use crate::store::{Cause, StoreError};

/// The shard key of the mark. No device has this ID.
const DEVICE_OF_MARK: &str = "(index)";

/// The knowledge of this instance about the mark.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The epoch of the index, if its mark was complete when it was last seen.
    complete: Option<ObjectId>,
    lacking: OncePerChange,
}

/// The mark of the collection, as it was read.
#[derive(Debug, Clone, Copy)]
struct Mark {
    epoch: ObjectId,
    is_complete: bool,
}

impl<L: Layout> MongoStore<L> {
    /// Reads from the index.
    ///
    /// Returns the result, and whether the index had all devices meanwhile.
    pub(in super::super) async fn in_index<T>(
        &self,
        read: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<(T, bool), StoreError> {
        let before = self.devices.complete_epoch().await?;
        let found = read.await?;
        let is_complete = match before {
            Some(_) => self.devices.read_complete_epoch().await? == before,
            None => self.is_empty().await?,
        };
        self.devices.note_complete(is_complete);
        Ok((found, is_complete))
    }

    /// Reads from the index, and fails if the index may have lacked devices meanwhile.
    pub(in super::super) async fn in_whole_index<T>(
        &self,
        read: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let (found, is_complete) = self.in_index(read).await?;
        if is_complete {
            return Ok(found);
        }
        let detail = format!("the collection {} lacks devices that are stored; run: {REBUILD}", self.devices.name());
        Err(StoreError::new(Cause::Schema, detail))
    }

    /// Whether the device index has all devices that are stored.
    pub(in super::super) async fn has_all_devices(&self) -> Result<bool, StoreError> {
        self.in_index(async { Ok(()) }).await.map(|((), is_complete)| is_complete)
    }

    /// Gives the index a mark, and completes it if nothing is stored.
    pub(in super::super) async fn mark(&self) -> Result<(), StoreError> {
        let Mark { epoch, is_complete } = self.devices.ensure_mark().await?;
        if !is_complete && self.is_empty().await? {
            return self.devices.complete(epoch).await;
        }
        self.devices.known().complete = is_complete.then_some(epoch);
        self.devices.note_complete(is_complete);
        Ok(())
    }

    async fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.layout.next_hour(Hour(i32::MIN)).await?.is_none() && self.rollups.is_empty().await?)
    }
}

impl DeviceIndex {
    /// The epoch of the index if it has all devices.
    ///
    /// Reads the mark, unless the mark was complete when this instance last saw it.
    async fn complete_epoch(&self) -> Result<Option<ObjectId>, StoreError> {
        let known = self.known().complete;
        if known.is_some() { Ok(known) } else { self.read_complete_epoch().await }
    }

    /// Reads the mark. Returns the epoch of the index if it has all devices.
    async fn read_complete_epoch(&self) -> Result<Option<ObjectId>, StoreError> {
        let mark = self.read_mark().await?;
        let complete = mark.filter(|mark| mark.is_complete).map(|mark| mark.epoch);
        self.known().complete = complete;
        Ok(complete)
    }

    async fn read_mark(&self) -> Result<Option<Mark>, StoreError> {
        let mark = |document: &RawDocument| {
            Ok(Some(Mark { epoch: document.get_object_id("epoch")?, is_complete: document.get_bool("complete")? }))
        };
        self.commands.first_readable(|| self.documents.find(of_mark()), mark).await
    }

    /// The epoch of the index, which gets one if it has none.
    pub(super) async fn epoch(&self) -> Result<ObjectId, StoreError> {
        Ok(self.ensure_mark().await?.epoch)
    }

    async fn ensure_mark(&self) -> Result<Mark, StoreError> {
        if let Some(mark) = self.read_mark().await? {
            return Ok(mark);
        }
        let new = doc! { "schemaVersion": SCHEMA_VERSION, "epoch": ObjectId::new(), "complete": false };
        // It does nothing if another instance was quicker.
        self.update_mark(doc! { "q": of_mark(), "u": { "$setOnInsert": new }, "upsert": true }).await?;
        let gone = || StoreError::new(Cause::Schema, "the device index was dropped or replaced");
        self.read_mark().await?.ok_or_else(gone)
    }

    /// Marks the index of this epoch as one that has all devices.
    pub(super) async fn complete(&self, epoch: ObjectId) -> Result<(), StoreError> {
        let mut of_epoch = of_mark();
        of_epoch.insert("epoch", epoch);
        let matched = self.update_mark(doc! { "q": of_epoch, "u": { "$set": { "complete": true } } }).await?;
        if matched == 0 {
            let detail = "the device index was dropped or replaced meanwhile: it is still incomplete";
            return Err(StoreError::new(Cause::Schema, detail));
        }
        self.known().complete = Some(epoch);
        self.note_complete(true);
        Ok(())
    }

    /// Writes the mark. Its errors are transient, like those of the schema: nothing is wrong with the
    /// readings, so they wait in the log.
    async fn update_mark(&self, statement: Document) -> Result<u64, StoreError> {
        let name = self.name();
        let written = self.commands.write_document(Verb::UpdateMatching, name, &statement).await;
        written.map_err(|error| {
            if error.is_permanent() {
                let detail = format!("the collection {name} refuses the mark of the device index: {error}");
                return StoreError::new(Cause::Schema, detail);
            }
            error
        })
    }

    /// Logs when the index begins to lack devices, and when it has all again.
    fn note_complete(&self, is_complete: bool) {
        let collection = self.name();
        if is_complete {
            if self.known().lacking.ends() {
                tracing::info!(collection, "the device index has all devices again");
            }
        } else if self.known().lacking.begins() {
            tracing::warn!(
                collection,
                "the device index lacks devices that are stored: lists are partial, and days are not rolled up; run: \
                 {REBUILD}"
            );
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of_mark() -> Document {
    doc! { "_id": { "index": 1 }, "deviceId": DEVICE_OF_MARK }
}
