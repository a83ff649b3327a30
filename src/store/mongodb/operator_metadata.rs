//! The metadata that operators have set for devices, in a collection of its own.
//!
//! ```js
//! { _id: "LIGHT-FL02-ZONE4", schemaVersion: 1, rev: 3,
//!   replacedAt: ISODate("2026-04-20T14:00:00Z"),               // keys that were set before are gone
//!   keys: { name: { value: "Corridor", at: ISODate("2026-04-20T14:00:00Z") },
//!           hall: { at: ISODate("2026-04-21T09:30:00Z") } } }  // removed
//! ```
//!
//! The collection is named after that of the readings, `buckets_metadata`, and is not sharded: it has a
//! document for each device that an operator has described. A document is read, merged and written back if
//! `rev` is still the same (optimistic concurrency), so changes of several instances are all in it.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bson::{RawDocument, RawDocumentBuf, doc};
use mongodb::Collection;

use super::by_device::of_devices;
use super::collection::Kind;
use super::decode::{DecodeError, expect_version, integer};
use super::devices::ids_after;
use super::encode::Encoder;
use super::layout::Layout;
use super::metadata;
use super::names;
use super::statements::{Outcome, Verb};
use super::store::MongoStore;
use crate::model::{OperatorKey, OperatorMetadata};
use crate::store::{Cause, OperatorMetadataStore, StoreError};

/// The schema version of the documents that this program writes and reads.
const SCHEMA_VERSION: i32 = 1;

/// The most attempts to merge changes while other instances are quicker.
const ATTEMPTS: usize = 10;

/// A document: its revision, and what it has.
#[derive(Debug, Clone, Default, PartialEq)]
struct Stored {
    rev: i64,
    metadata: OperatorMetadata,
}

/// A document to write: its `_id`, the revision that it replaces (0: none), and its new metadata.
struct Write<'a> {
    device: &'a str,
    replaces: i64,
    metadata: OperatorMetadata,
}

impl<L: Layout> MongoStore<L> {
    /// The name of the collection.
    pub(super) fn operator_metadata_name(&self) -> String {
        format!("{}_metadata", self.layout.collection_names()[0])
    }

    /// The documents of these devices, and the error of the first one that cannot be read.
    async fn stored_metadata(
        &self,
        collection: Collection<RawDocumentBuf>,
        devices: &[&str],
    ) -> Result<(HashMap<Arc<str>, Stored>, Result<(), StoreError>), StoreError> {
        let (mut found, mut unreadable) = (HashMap::new(), Ok(()));
        if devices.is_empty() {
            return Ok((found, unreadable));
        }
        let find = self.commands.limited(collection.find(doc! { "_id": of_devices(devices) }));
        let visit = |document: &RawDocument| {
            let decoded = decode(document);
            if let Err(error) = &decoded
                && unreadable.is_ok()
            {
                unreadable = Err(DecodeError(error.0.clone()).into());
            }
            let (device, stored) = decoded?;
            found.insert(device, stored);
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_document(find, visit).await?;
        Ok((found, unreadable))
    }
}

#[async_trait]
impl<L: Layout> OperatorMetadataStore for MongoStore<L> {
    async fn merge_metadata(&self, changes: &[(Arc<str>, OperatorMetadata)]) -> Result<(), StoreError> {
        let name = self.operator_metadata_name();
        let mut left: BTreeMap<&str, OperatorMetadata> = BTreeMap::new();
        for (device, change) in changes {
            left.entry(device).or_default().merge(change.clone());
        }
        for _ in 0..ATTEMPTS {
            // Reads what a majority has, so that a change that is found there is durable.
            let devices: Vec<&str> = left.keys().copied().collect();
            let (stored, readable) = self.stored_metadata(self.commands.durable(&name), &devices).await?;
            readable?;
            let mut writes = Vec::new();
            for (device, change) in &left {
                let Stored { rev, metadata: known } = stored.get(*device).cloned().unwrap_or_default();
                let mut metadata = known.clone();
                metadata.merge(change.clone());
                metadata.forget_old_removals();
                if metadata != known {
                    writes.push(Write { device, replaces: rev, metadata });
                }
            }
            let collection = self.commands.managed(&name);
            if writes.iter().any(|write| write.replaces == 0) && collection.present(Kind::Plain).await?.is_none() {
                collection.create(doc! {}).await?; // with the compression of the options
            }
            let (mut unmet, mut failed) = (Vec::new(), Ok(()));
            let settle = |write: &Write<'_>, outcome| match outcome {
                Outcome::Done => {}
                Outcome::Unmet => unmet.push(write.device.to_owned()),
                Outcome::Failed(error) => failed = Err(error),
            };
            self.commands.write_all(Verb::Update, &name, &writes, put, settle).await?;
            failed?;
            if unmet.is_empty() {
                return Ok(());
            }
            left.retain(|device, _| unmet.iter().any(|unmet| unmet == device));
        }
        Err(StoreError::new(Cause::Contention, "other writers of the metadata were quicker"))
    }

    async fn metadata_of(&self, devices: &[Arc<str>]) -> Result<HashMap<Arc<str>, OperatorMetadata>, StoreError> {
        let devices: Vec<&str> = devices.iter().map(|device| &**device).collect();
        let collection = self.commands.reading(&self.operator_metadata_name());
        let (stored, _) = self.stored_metadata(collection, &devices).await?;
        Ok(stored.into_iter().map(|(device, stored)| (device, stored.metadata)).collect())
    }

    async fn list_metadata(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(Arc<str>, OperatorMetadata)>, StoreError> {
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        let batch = u32::try_from(limit).unwrap_or(u32::MAX).max(2);
        let collection = self.commands.reading(&self.operator_metadata_name());
        let find = collection.find(doc! { "_id": ids_after(prefix, after) }).sort(doc! { "_id": 1 }).batch_size(batch);
        let visit = |document: &RawDocument| {
            let (device, stored) = decode(document)?;
            found.push((device, stored.metadata));
            Ok(if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        };
        self.commands.each_document(self.commands.limited(find), visit).await?;
        Ok(found)
    }
}

/// Writes the statement that replaces a document of one revision, or inserts it.
fn put(statement: &mut Encoder, write: &Write<'_>) {
    statement.document("q", |filter| {
        filter.string("_id", write.device);
        filter.int64("rev", write.replaces);
    });
    statement.document("u", |document| encode(document, write.replaces + 1, &write.metadata));
    statement.boolean("upsert", true);
}

fn encode(document: &mut Encoder, rev: i64, metadata: &OperatorMetadata) {
    document.int32("schemaVersion", SCHEMA_VERSION);
    document.int64("rev", rev);
    if let Some(replaced_ms) = metadata.replaced_ms {
        document.datetime("replacedAt", replaced_ms);
    }
    document.document("keys", |keys| {
        for (key, OperatorKey { at_ms, value }) in &metadata.keys {
            keys.document(&*names::stored(key), |of| {
                if let Some(value) = value {
                    metadata::encode_value(of, "value", value);
                }
                of.datetime("at", *at_ms);
            });
        }
    });
}

fn decode(document: &RawDocument) -> Result<(Arc<str>, Stored), DecodeError> {
    expect_version(document, SCHEMA_VERSION)?;
    let replaced_ms = document.get("replacedAt")?.and_then(bson::RawBsonRef::as_datetime);
    let mut keys = BTreeMap::new();
    for element in document.get_document("keys")? {
        let (key, of) = element?;
        let of = of.as_document().ok_or_else(|| DecodeError("a key is not a document".into()))?;
        let value = of.get("value")?.map(metadata::decode_value).transpose()?;
        let at_ms = of.get_datetime("at")?.timestamp_millis();
        keys.insert(names::original(key.as_str()).into_owned(), OperatorKey { at_ms, value });
    }
    let metadata = OperatorMetadata { replaced_ms: replaced_ms.map(bson::DateTime::timestamp_millis), keys };
    Ok((document.get_str("_id")?.into(), Stored { rev: integer(document, "rev")?, metadata }))
}

#[cfg(test)]
mod tests {
    use bson::{DateTime, Document};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_read_as_it_was_written() {
        let set = |value| OperatorKey { at_ms: 7, value: Some(value) };
        let keys = [
            ("name".to_owned(), set(json!("Press 3"))),
            ("$a.b".to_owned(), set(json!({"c.d": [1, null, 0.5]}))),
            ("gone".to_owned(), OperatorKey { at_ms: 8, value: None }),
        ];
        let metadata = OperatorMetadata { replaced_ms: Some(5), keys: keys.into() };
        let built = Encoder::build(|document| {
            document.string("_id", "d");
            encode(document, 3, &metadata);
        });
        assert_eq!(decode(&built).unwrap(), ("d".into(), Stored { rev: 3, metadata }));
        let at = DateTime::from_millis;
        let expected = doc! {
            "_id": "d", "schemaVersion": 1, "rev": 3_i64, "replacedAt": at(5), "keys": {
                "\u{FF04}a\u{FF0E}b": { "value": { "c\u{FF0E}d": [1, null, 0.5] }, "at": at(7) },
                "gone": { "at": at(8) },
                "name": { "value": "Press 3", "at": at(7) },
            },
        };
        assert_eq!(Document::try_from(&*built).unwrap(), expected);
    }
}
