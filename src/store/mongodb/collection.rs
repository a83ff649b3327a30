//! Brings a collection, its indexes, its expiry and its sharding to what a schema asks for.
//!
//! All steps may be repeated, by several instances at once. Their errors are always transient: nothing is
//! wrong with the readings, so they wait in the log until an operator corrects the database.

use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::IndexModel;
use mongodb::error::{Error, ErrorKind};
use mongodb::options::IndexOptions;

use super::command::{Commands, first_batch};
use super::errors::within;
use crate::store::{Cause, StoreError};

/// The field of most collections that expiry counts from. The roller finds hours by its index.
pub(super) const CREATED_AT: &str = "createdAt";

/// The name of the index that sharding needs.
pub(super) const SHARD_INDEX: &str = "deviceId_hashed";

/// The largest `expireAfterSeconds` that the server accepts.
pub(super) const EXPIRE_MAX: Duration = Duration::from_secs(i32::MAX as u64);

/// The code of `shardCollection` for a collection that is sharded by another key.
const ALREADY_INITIALIZED: i32 = 23;

const NAMESPACE_NOT_FOUND: i32 = 26;

const NAMESPACE_EXISTS: i32 = 48;

/// The codes of servers that do not allow sharding: `Unauthorized`, `CommandNotFound`, `CommandNotSupported`,
/// and `AtlasError` of hosted clusters that look like a mongos.
const CANNOT_SHARD: [i32; 4] = [13, 59, 115, 8000];

/// The kind of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deployment {
    /// A mongod that belongs to no replica set.
    Standalone,
    /// A member of a replica set.
    ReplicaSet,
    /// A mongos of a sharded cluster.
    Sharded,
}

impl Deployment {
    /// Derives the kind from the reply to `hello`.
    pub(super) fn of(hello: &Document) -> Self {
        if hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
            Self::Sharded
        } else if hello.contains_key("setName") {
            Self::ReplicaSet
        } else {
            Self::Standalone
        }
    }
}

/// The type of a collection, as the server names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A collection of documents.
    Plain,
    /// A time series, of measurements.
    Timeseries,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "collection",
            Self::Timeseries => "timeseries",
        }
    }
}

/// A collection whose schema tidegauge manages.
#[derive(Debug, Clone)]
pub(super) struct ManagedCollection {
    pub(super) commands: Commands,
    pub(super) name: String,
}

impl ManagedCollection {
    pub(super) async fn deployment(&self) -> Result<Deployment, StoreError> {
        Ok(Deployment::of(&self.run(doc! { "hello": 1 }).await?))
    }

    /// The entry of the collection in the server's list; `None` if it does not exist.
    ///
    /// # Errors
    /// When the server does not answer or refuses, or when the collection is of another kind, so that it
    /// cannot be used.
    pub(super) async fn present(&self, kind: Kind) -> Result<Option<Document>, StoreError> {
        let Some(found) = self.list(doc! { "name": &self.name }).await?.pop() else { return Ok(None) };
        let (found_type, wanted) = (found.get_str("type").unwrap_or_default(), kind.name());
        if found_type != wanted {
            let detail = format!(
                "the collection {} has the type {found_type}, and {wanted} is needed: choose another name in the \
                 configuration",
                self.name
            );
            return Err(StoreError::new(Cause::Schema, detail));
        }
        Ok(Some(found))
    }

    /// The entries of the collections that match `filter` in the server's list. They must fit into one reply.
    pub(super) async fn list(&self, filter: Document) -> Result<Vec<Document>, StoreError> {
        Ok(first_batch(&self.run(doc! { "listCollections": 1, "filter": filter }).await?))
    }

    /// Renames the collection if it is a plain one, and returns its new name. `None` if there is no plain
    /// collection of this name, or another instance was quicker.
    pub(super) async fn set_plain_aside(&self) -> Result<Option<String>, StoreError> {
        let plain = doc! { "name": &self.name, "type": Kind::Plain.name() };
        let Some(found) = self.list(plain).await?.pop() else { return Ok(None) };
        let uuid = match found.get_document("info").map(|info| info.get("uuid")) {
            Ok(Some(Bson::Binary(uuid))) => hex(uuid.bytes.get(..4).unwrap_or_default()),
            _ => String::new(),
        };
        let aside = format!("{}_set_aside_{uuid}", self.name);
        let database = &self.commands.database;
        let rename = doc! {
            "renameCollection": format!("{}.{}", database.name(), self.name),
            "to": format!("{}.{aside}", database.name()),
        };
        self.attempt(async {
            match database.client().database("admin").run_command(rename).await {
                Ok(_) => Ok(Some(aside)),
                Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(None),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Creates the collection. If the server does not accept the option of the compression (another storage
    /// engine, some hosted clusters), the collection is created without it.
    pub(super) async fn create(&self, options: Document) -> Result<(), StoreError> {
        let mut create = doc! { "create": &self.name };
        create.extend(options);
        let mut compressed = create.clone();
        let compressor = self.commands.compressor.name();
        let config = format!("block_compressor={compressor}");
        compressed.insert("storageEngine", doc! { "wiredTiger": { "configString": config } });
        self.attempt(async {
            let refused = match self.commands.database.run_command(compressed).await {
                Err(error) if code(&error) == Some(NAMESPACE_EXISTS) => return Ok(()), // another instance was quicker
                Err(error) if code(&error).is_some() => error,
                other => return other.map(drop),
            };
            match self.commands.database.run_command(create).await {
                Err(error) if code(&error) == Some(NAMESPACE_EXISTS) => return Ok(()),
                other => other?,
            };
            tracing::warn!(
                collection = self.name,
                compressor,
                error = %refused,
                "the server does not accept mongodb.block_compressor; the collection has the server's default"
            );
            Ok(())
        })
        .await
    }

    /// Creates a view of the collection, and returns whether there was none. The server must be able to run
    /// its stages.
    pub(super) async fn ensure_view(&self, view: &str, stages: Vec<Document>) -> Result<bool, StoreError> {
        if !self.list(doc! { "name": view }).await?.is_empty() {
            return Ok(false);
        }
        let mut once = stages.clone();
        once.push(doc! { "$limit": 1 });
        self.run(doc! { "aggregate": &self.name, "pipeline": once, "cursor": {} }).await?;
        let create = doc! { "create": view, "viewOn": &self.name, "pipeline": stages };
        self.attempt(async {
            match self.commands.database.run_command(create).await {
                Err(error) if code(&error) == Some(NAMESPACE_EXISTS) => Ok(false), // another instance was quicker
                other => other.map(|_| true),
            }
        })
        .await
    }

    /// Changes options of the collection.
    pub(super) async fn modify(&self, options: Document) -> Result<(), StoreError> {
        let mut modify = doc! { "collMod": &self.name };
        modify.extend(options);
        self.run(modify).await.map(drop)
    }

    /// Makes the index on `field` expire documents after `after`.
    ///
    /// `None` keeps documents forever. The index has the name of the field. If the present index expires
    /// documents later, it stays as it is unless `may_shorten`.
    pub(super) async fn ensure_expiry(
        &self,
        field: &str,
        after: Option<Duration>,
        may_shorten: bool,
    ) -> Result<(), StoreError> {
        let key = doc! { field: 1 };
        let wanted = after.map(|after| Duration::from_secs(after.min(EXPIRE_MAX).as_secs()));
        let Some(present) = self.indexes().await?.into_iter().find(|index| index.keys == key) else {
            return self.ensure_index(field, key, wanted).await;
        };
        let options = present.options.unwrap_or_default();
        if options.expire_after == wanted || (!may_shorten && is_shorter(wanted, options.expire_after)) {
            return Ok(());
        }
        if let Some(expiry) = wanted {
            let seconds = expiry.as_secs() as i64;
            self.modify(doc! { "index": { "keyPattern": key, "expireAfterSeconds": seconds } }).await?;
        } else {
            self.run(doc! { "dropIndexes": &self.name, "index": options.name }).await?;
            self.ensure_index(field, key, None).await?;
        }
        let (old, new) = (options.expire_after, wanted);
        tracing::info!(collection = self.name, ?old, ?new, "changed when documents expire");
        Ok(())
    }

    /// Shards the collection by device. All documents of a device are on one shard; so an `_id` is unique,
    /// though each shard enforces that for its own documents only. If the user may not shard, the collection
    /// stays on one shard, and a warning tells the operator what to do.
    pub(super) async fn ensure_sharding(&self, deployment: Deployment, device_field: &str) -> Result<(), StoreError> {
        if deployment != Deployment::Sharded {
            return Ok(());
        }
        // The index first: the server needs it to shard a collection that has documents.
        self.ensure_index(SHARD_INDEX, doc! { device_field: "hashed" }, None).await?;
        let database = &self.commands.database;
        let namespace = format!("{}.{}", database.name(), self.name);
        let shard = doc! { "shardCollection": &namespace, "key": { device_field: "hashed" } };
        let sharding = self.attempt(async {
            match database.client().database("admin").run_command(shard).await {
                Err(error) if code(&error).is_some_and(|code| CANNOT_SHARD.contains(&code)) => {
                    warn_of_one_shard(&namespace, device_field, &error);
                    Ok(true)
                }
                Err(error) if code(&error) == Some(ALREADY_INITIALIZED) => Ok(false),
                other => other.map(|_| true),
            }
        });
        if sharding.await? {
            return Ok(());
        }
        let mend = reshard(&namespace, device_field);
        let detail = format!("{namespace} is sharded by another key than the hashed {device_field}: {mend}");
        Err(StoreError::new(Cause::Schema, detail))
    }

    async fn indexes(&self) -> Result<Vec<IndexModel>, StoreError> {
        let collection = self.commands.database.collection::<Document>(&self.name);
        self.attempt(async { collection.list_indexes().await?.try_collect().await }).await
    }

    /// Creates an index, unless there is the same one.
    pub(super) async fn ensure_index(
        &self,
        name: &str,
        keys: Document,
        expiry: Option<Duration>,
    ) -> Result<(), StoreError> {
        let options = IndexOptions::builder().name(name.to_owned()).expire_after(expiry).build();
        let index = IndexModel::builder().keys(keys).options(options).build();
        let collection = self.commands.database.collection::<Document>(&self.name);
        self.attempt(async { collection.create_index(index).await.map(drop) }).await
    }

    async fn run(&self, command: Document) -> Result<Document, StoreError> {
        self.attempt(async { self.commands.database.run_command(command).await }).await
    }

    async fn attempt<T>(&self, call: impl Future<Output = mongodb::error::Result<T>>) -> Result<T, StoreError> {
        within(self.commands.timeout, call).await.map_err(|error| {
            let cause = if error.cause.is_permanent() { Cause::Schema } else { error.cause };
            StoreError { cause, ..error }
        })
    }
}

/// The mend of a collection that is sharded by another key than its device.
pub(super) fn reshard(namespace: &str, device_field: &str) -> String {
    format!("reshard it: sh.reshardCollection({namespace:?}, {{ {device_field:?}: \"hashed\" }})")
}

fn warn_of_one_shard(namespace: &str, device_field: &str, error: &Error) {
    let command = format!("sh.shardCollection(\"{namespace}\", {{ \"{device_field}\": \"hashed\" }})");
    tracing::warn!(
        namespace,
        %error,
        "the collection stays on one shard, because this user may not shard it: grant enableSharding on it and \
         restart tidegauge, or let an administrator run {command}"
    );
}

/// Whether documents of the age `new` expire earlier than those of the age `old`. `None` keeps them forever.
pub(super) fn is_shorter<T: PartialOrd>(new: Option<T>, old: Option<T>) -> bool {
    new.is_some_and(|new| old.is_none_or(|old| new < old))
}

/// Bytes, such as those of a UUID, as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

pub(super) fn has_keys(listed: &Document, keys: &Document) -> bool {
    listed.get_document("key").is_ok_and(|found| found.iter().eq(keys)) // in their order
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
    fn the_kind_of_a_server_follows_from_its_hello() {
        assert_eq!(Deployment::of(&doc! { "ok": 1, "msg": "isdbgrid" }), Deployment::Sharded);
        assert_eq!(Deployment::of(&doc! { "ok": 1, "setName": "rs0" }), Deployment::ReplicaSet);
        assert_eq!(Deployment::of(&doc! { "ok": 1 }), Deployment::Standalone);
    }
}
