//! A collection with its indexes, its expiry and its sharding, brought to what is asked for.
//!
//! Everything here can be done again and again, by several instances at once. Its errors are always transient: nothing
//! about the readings is wrong, so that they wait until an operator mends the database.

use std::time::Duration;

use bson::{Binary, Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::error::{Error, ErrorKind};
use mongodb::options::IndexOptions;
use mongodb::{Database, IndexModel};

use super::errors::within;
use crate::store::WriteError;

/// The index on `createdAt`: it finds the documents of an hour, and expires them where they are not kept forever.
const AGE_INDEX: &str = "createdAt";

/// The largest `expireAfterSeconds` that the server takes.
const EXPIRE_MAX: Duration = Duration::from_secs(i32::MAX as u64);

const NAMESPACE_EXISTS: i32 = 48;
const UNAUTHORIZED: i32 = 13;

/// What kind of server this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deployment {
    Standalone,
    ReplicaSet,
    Sharded,
}

impl Deployment {
    /// What the reply to `hello` says.
    fn of(hello: &Document) -> Self {
        if hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
            Self::Sharded
        } else if hello.contains_key("setName") {
            Self::ReplicaSet
        } else {
            Self::Standalone
        }
    }
}

/// A plain collection whose documents have a `deviceId` and a `createdAt`.
#[derive(Debug, Clone)]
pub(super) struct ManagedCollection {
    pub(super) database: Database,
    pub(super) name: String,
    pub(super) timeout: Duration,
}

impl ManagedCollection {
    pub(super) async fn deployment(&self) -> Result<Deployment, WriteError> {
        Ok(Deployment::of(&self.run(doc! { "hello": 1 }).await?))
    }

    /// What the server lists of the collection; `None` when there is none.
    pub(super) async fn present(&self) -> Result<Option<Document>, WriteError> {
        let reply = self.run(doc! { "listCollections": 1, "filter": { "name": &self.name } }).await?;
        let first = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).ok();
        let Some(found) = first.and_then(|batch| batch.first()?.as_document()) else {
            return Ok(None);
        };
        if found.get_str("type").is_ok_and(|kind| kind != "collection") {
            let detail = format!("{} is not a plain collection: it cannot hold documents of tidegauge", self.name);
            return Err(WriteError::Transient { reason: "schema", detail });
        }
        Ok(Some(found.clone()))
    }

    /// The UUID that the server gave the collection when it was made.
    pub(super) async fn identity(&self) -> Result<String, WriteError> {
        let present = self.present().await?;
        let uuid = present.as_ref().and_then(|found| found.get_document("info").ok()?.get("uuid"));
        match uuid {
            Some(Bson::Binary(Binary { bytes, .. })) => Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            _ => {
                let detail = format!("the server does not say which collection {} is", self.name);
                Err(WriteError::Transient { reason: "schema", detail })
            }
        }
    }

    pub(super) async fn create(&self, options: Document) -> Result<(), WriteError> {
        let mut create = doc! { "create": &self.name };
        create.extend(options);
        self.attempt(async {
            match self.database.run_command(create).await {
                Err(error) if code(&error) == Some(NAMESPACE_EXISTS) => Ok(()), // another instance was quicker
                other => other.map(drop),
            }
        })
        .await
    }

    /// Changes options of the collection.
    pub(super) async fn modify(&self, options: Document) -> Result<(), WriteError> {
        let mut modify = doc! { "collMod": &self.name };
        modify.extend(options);
        self.run(modify).await.map(drop)
    }

    pub(super) async fn ensure_index(&self, name: &str, keys: Document) -> Result<(), WriteError> {
        self.create_index(name, keys, None).await
    }

    /// The index on `createdAt`, which lets documents expire so long after it. `None` keeps them forever.
    pub(super) async fn ensure_expiry(&self, after: Option<Duration>) -> Result<(), WriteError> {
        let key = doc! { "createdAt": 1 };
        let wanted = after.map(|after| Duration::from_secs(after.min(EXPIRE_MAX).as_secs()));
        let Some(present) = self.indexes().await?.into_iter().find(|index| index.keys == key) else {
            return self.create_index(AGE_INDEX, key, wanted).await;
        };
        let options = present.options.unwrap_or_default();
        if options.expire_after == wanted {
            return Ok(());
        }
        match wanted {
            Some(expiry) => {
                let seconds = expiry.as_secs() as i64;
                self.modify(doc! { "index": { "keyPattern": key, "expireAfterSeconds": seconds } }).await?;
            }
            None => {
                self.run(doc! { "dropIndexes": &self.name, "index": options.name }).await?;
                self.create_index(AGE_INDEX, key, None).await?;
            }
        }
        let (old, new) = (options.expire_after, wanted);
        tracing::info!(collection = self.name, ?old, ?new, "changed when documents expire");
        Ok(())
    }

    /// Spreads the documents over the shards by device. All those of a device are on one shard, which is why an `_id`
    /// is unique though each shard watches over its own only.
    pub(super) async fn ensure_sharding(&self) -> Result<(), WriteError> {
        self.ensure_index("deviceId_hashed", doc! { "deviceId": "hashed" }).await?;
        let namespace = format!("{}.{}", self.database.name(), self.name);
        let shard = doc! { "shardCollection": &namespace, "key": { "deviceId": "hashed" } };
        self.attempt(async {
            match self.database.client().database("admin").run_command(shard).await {
                Err(error) if code(&error) == Some(UNAUTHORIZED) => {
                    tracing::warn!(
                        namespace,
                        "not allowed to shard the collection; shard it on {{ deviceId: \"hashed\" }}"
                    );
                    Ok(())
                }
                other => other.map(drop),
            }
        })
        .await
    }

    async fn indexes(&self) -> Result<Vec<IndexModel>, WriteError> {
        let collection = self.database.collection::<Document>(&self.name);
        self.attempt(async { collection.list_indexes().await?.try_collect().await }).await
    }

    async fn create_index(&self, name: &str, keys: Document, expiry: Option<Duration>) -> Result<(), WriteError> {
        let options = IndexOptions::builder().name(name.to_owned()).expire_after(expiry).build();
        let index = IndexModel::builder().keys(keys).options(options).build();
        let collection = self.database.collection::<Document>(&self.name);
        self.attempt(async { collection.create_index(index).await.map(drop) }).await
    }

    async fn run(&self, command: Document) -> Result<Document, WriteError> {
        self.attempt(async { self.database.run_command(command).await }).await
    }

    async fn attempt<T>(&self, call: impl Future<Output = mongodb::error::Result<T>>) -> Result<T, WriteError> {
        within(self.timeout, call).await.map_err(|error| match error {
            WriteError::Permanent { detail, .. } => WriteError::Transient { reason: "schema", detail },
            transient @ WriteError::Transient { .. } => transient,
        })
    }
}

fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(refusal) => Some(refusal.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_what_it_is() {
        assert_eq!(Deployment::of(&doc! { "ok": 1, "msg": "isdbgrid" }), Deployment::Sharded);
        assert_eq!(Deployment::of(&doc! { "ok": 1, "setName": "rs0" }), Deployment::ReplicaSet);
        assert_eq!(Deployment::of(&doc! { "ok": 1 }), Deployment::Standalone);
    }
}
