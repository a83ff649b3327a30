//! The notes of the instances that share a database, in a collection of their own.
//!
//! ```js
//! { _id: "instance/3f0a…", schemaVersion: 1, kind: "instance", beats: 1234, leaseMs: 40000,
//!   seenAt: ISODate("2026-04-20T14:00:10Z") }
//! { _id: "deletion/00c1…", schemaVersion: 1, kind: "deletion", from: "3f0a…",
//!   record: "{\"id\":…}", // JSON, as in the log
//!   joined: ["3f0a…", "77e2…"], executed: [{ instance: "3f0a…", readings: 90 }], closed: false,
//!   seenAt: ISODate("2026-04-20T14:00:10Z") }
//! ```
//!
//! The collection is named after that of the readings, `buckets_instances`, and is not sharded: it has a
//! document for each instance, and one for each deletion that is not complete. The server removes a document
//! 30 days after `seenAt`, by its own clock.
//!
//! Each change is one update of one document, whose filter has the condition: an instance joins a deletion
//! only while it is not closed, and a deletion is closed only for the instances that have joined it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bson::{Bson, Document, RawArray, RawBsonRef, RawDocument, doc};

use super::decode::{DecodeError, expect_version, integer};
use super::layout::Layout;
use super::plain_schema::PlainSchema;
use super::statements::Verb;
use super::store::MongoStore;
use crate::store::{Announced, Cause, Instance, Instances, Joined, Notes, StoreError};

const SCHEMA_VERSION: i32 = 1;

/// How long a note stays after its last change.
const KEPT: Duration = Duration::from_secs(30 * 86_400);

/// The field that expiry counts from.
const SEEN_AT: &str = "seenAt";

/// How much longer than `mongodb.timeout` a command may be under way.
const COMMAND_GRACE: Duration = Duration::from_secs(2);

impl<L: Layout> MongoStore<L> {
    fn notes(&self) -> String {
        format!("{}_instances", self.layout.collection_names()[0])
    }

    /// The schema of the collection, which is not sharded.
    pub(super) fn schema_of_notes(&self) -> PlainSchema {
        let collection = self.commands.managed(&self.notes());
        PlainSchema { collection, age_field: SEEN_AT, expiry: Some(KEPT) }
    }

    /// Executes a statement of an update, and returns the number of documents that it matched or inserted: 0
    /// if another instance was quicker to insert the document.
    async fn update_notes(&self, statement: Document) -> Result<u64, StoreError> {
        let updated = self.commands.write_document(Verb::UpdateMatching, &self.notes(), &statement).await;
        updated.map_err(|error| self.commands.explain(error))
    }

    async fn delete_notes(&self, filter: Document) -> Result<(), StoreError> {
        let statement = doc! { "q": filter, "limit": 0 };
        let deleted = self.commands.write_document(Verb::DeleteMatching, &self.notes(), &statement).await;
        deleted.map(drop).map_err(|error| self.commands.explain(error))
    }

    /// Finds notes. Unlike other documents, none is skipped: an instance that does not know all others could
    /// undo their deletions.
    async fn find_notes(&self, filter: Document) -> Result<Notes, StoreError> {
        let (mut notes, mut unreadable) = (Notes::default(), None);
        let collection = self.commands.reading(&self.notes());
        self.commands
            .each_document(collection.find(filter).sort(doc! { SEEN_AT: 1, "_id": 1 }), |document| {
                let Err(error) = add(document, &mut notes) else { return Ok(ControlFlow::Continue(())) };
                let id = document.get_str("_id").unwrap_or_default();
                let why = format!("the note {id:?} in {} cannot be read: {error}", self.notes());
                unreadable = Some(StoreError::new(Cause::UnreadableDocument, why));
                Ok(ControlFlow::Break(()))
            })
            .await
            .map_err(|error| self.commands.explain(error))?;
        unreadable.map_or(Ok(notes), Err)
    }
}

#[async_trait]
impl<L: Layout> Instances for MongoStore<L> {
    async fn beat(&self, instance: &str, valid: Duration) -> Result<bool, StoreError> {
        let lease = valid + self.longest_command();
        let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        let now = doc! { SEEN_AT: true };
        let set = doc! { "schemaVersion": SCHEMA_VERSION, "kind": "instance", "leaseMs": lease_ms };
        let mut beat = doc! {
            "q": { "_id": of_instance(instance) },
            "u": { "$inc": { "beats": 1_i64 }, "$set": set, "$currentDate": now },
        };
        if self.update_notes(beat.clone()).await? > 0 {
            return Ok(false);
        }
        self.schema_of_notes().ensure_unsharded().await.map_err(|error| self.commands.explain(error))?;
        beat.insert("upsert", true);
        self.update_notes(beat).await?;
        Ok(true)
    }

    fn longest_command(&self) -> Duration {
        self.commands.timeout + COMMAND_GRACE
    }

    async fn look(&self, instance: &str) -> Result<Notes, StoreError> {
        let is_open = doc! { "kind": "deletion", "closed": false };
        let is_left = doc! { "kind": "deletion", "executed.instance": { "$ne": instance } };
        let notes = self.find_notes(doc! { "$or": [{ "kind": "instance" }, is_open, is_left] }).await?;
        self.devices.noted.note_others(notes.instances.iter().any(|other| *other.id != *instance));
        Ok(notes)
    }

    async fn announce(&self, id: &str, from: &str, record: &str) -> Result<(), StoreError> {
        let none: [&str; 0] = [];
        let of_text = |text: &str| doc! { "$literal": text };
        let new = doc! {
            "schemaVersion": SCHEMA_VERSION, "kind": "deletion", "from": of_text(from), "record": of_text(record),
            "joined": none, "executed": none, "closed": false, SEEN_AT: "$$NOW",
        };
        let or_new = |(field, value): (String, Bson)| {
            let known = format!("${field}");
            (field, Bson::from(doc! { "$ifNull": [known, value] }))
        };
        let unless_known: Document = new.into_iter().map(or_new).collect();
        let update = vec![doc! { "$set": unless_known }];
        self.update_notes(doc! { "q": { "_id": of_deletion(id) }, "u": update, "upsert": true }).await.map(drop)
    }

    async fn join(&self, id: &str, instance: &str) -> Result<Joined, StoreError> {
        let id = of_deletion(id);
        let join = doc! { "$addToSet": { "joined": instance } };
        if self.update_notes(doc! { "q": { "_id": &id, "closed": false }, "u": join }).await? > 0 {
            return Ok(Joined::Yes);
        }
        let is_known = !self.find_notes(doc! { "_id": id }).await?.deletions.is_empty();
        Ok(if is_known { Joined::Closed } else { Joined::Unknown })
    }

    async fn note_executed(&self, id: &str, instance: &str, readings: u64) -> Result<(), StoreError> {
        let readings = i64::try_from(readings).unwrap_or(i64::MAX);
        let filter = doc! { "_id": of_deletion(id), "executed.instance": { "$ne": instance } };
        let executed = doc! { "$push": { "executed": { "instance": instance, "readings": readings } } };
        self.update_notes(doc! { "q": filter, "u": executed }).await.map(drop)
    }

    async fn close(&self, announced: &Announced) -> Result<bool, StoreError> {
        let filter = doc! { "_id": of_deletion(&announced.id), "closed": false, "joined": &announced.joined };
        let close = doc! { "$set": { "closed": true } };
        Ok(self.update_notes(doc! { "q": filter, "u": close }).await? > 0)
    }

    async fn pass_closed(&self, instance: &str, age: Duration) -> Result<(), StoreError> {
        let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let was_announced = doc! { "$lte": [format!("${SEEN_AT}"), { "$subtract": ["$$NOW", age_ms] }] };
        let filter = doc! {
            "kind": "deletion", "closed": true, "executed.instance": { "$ne": instance }, "$expr": was_announced,
        };
        let executed = doc! { "$push": { "executed": { "instance": instance, "readings": 0_i64 } } };
        self.update_notes(doc! { "q": filter, "u": executed, "multi": true }).await.map(drop)
    }

    async fn remove_closed(&self, instances: &[&str]) -> Result<(), StoreError> {
        let all = doc! { "kind": "deletion", "closed": true, "executed.instance": { "$all": instances } };
        self.delete_notes(all).await
    }

    async fn leave(&self, instance: &str) -> Result<(), StoreError> {
        self.delete_notes(doc! { "_id": of_instance(instance) }).await
    }

    async fn check_entry(&self, device: &Arc<str>) -> Result<(), StoreError> {
        let noted = {
            let _alone = self.changes.write().await; // writes that rely on the entry have ended
            self.devices.noted.forget_and_collect(device)
        };
        if self.devices.one(device).await?.is_none() {
            let Some(summary) = self.sum_up(device).await? else { return Ok(()) };
            self.devices.add(&[summary]).await?;
        }
        match noted {
            Some(noted) => self.devices.add(&[noted]).await,
            None => Ok(()),
        }
    }
}

fn of_instance(id: &str) -> String {
    format!("instance/{id}")
}

fn of_deletion(id: &str) -> String {
    format!("deletion/{id}")
}

/// The ID of the instance or deletion in the `_id` of its note.
fn id_in(document: &RawDocument) -> Result<&str, DecodeError> {
    let id = document.get_str("_id")?;
    Ok(id.split_once('/').map_or(id, |(_, id)| id))
}

fn add(document: &RawDocument, notes: &mut Notes) -> Result<(), DecodeError> {
    expect_version(document, SCHEMA_VERSION)?;
    match document.get_str("kind")? {
        "instance" => notes.instances.push(instance(document)?),
        _ => notes.deletions.push(announced(document)?),
    }
    Ok(())
}

fn instance(document: &RawDocument) -> Result<Instance, DecodeError> {
    let lease_ms = u64::try_from(integer(document, "leaseMs")?).unwrap_or(0);
    Ok(Instance {
        id: id_in(document)?.into(),
        beats: integer(document, "beats")?,
        lease: Duration::from_millis(lease_ms),
    })
}

fn announced(document: &RawDocument) -> Result<Announced, DecodeError> {
    let joined = document.get_array("joined")?;
    Ok(Announced {
        id: id_in(document)?.to_owned(),
        from: document.get_str("from")?.to_owned(),
        record: document.get_str("record")?.to_owned(),
        joined: each(joined, |value| Some(value.as_str()?.to_owned()))?,
        executed: each(document.get_array("executed")?, |value| {
            let of = value.as_document()?;
            let readings = integer(of, "readings").ok()?;
            Some((of.get_str("instance").ok()?.to_owned(), u64::try_from(readings).unwrap_or(0)))
        })?,
        is_closed: document.get_bool("closed")?,
    })
}

fn each<T>(array: &RawArray, read: impl Fn(RawBsonRef<'_>) -> Option<T>) -> Result<Vec<T>, DecodeError> {
    let malformed = || DecodeError("an element has another type".into());
    array.into_iter().map(|value| read(value?).ok_or_else(malformed)).collect()
}
