//! The collection, its indexes, its validator and its sharding, brought to what the options ask for.
//!
//! Everything here can be done again and again, by several instances at once.

use std::time::Duration;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::error::{Error, ErrorKind};
use mongodb::options::IndexOptions;
use mongodb::{Database, IndexModel};

use super::super::errors::within;
use super::document::SCHEMA_VERSION;
use crate::model::DEVICE_ID_MAX_BYTES;
use crate::store::WriteError;

/// The index that every query uses.
const QUERY_INDEX: &str = "deviceId_bucket";
/// The index that expires buckets.
const TTL_INDEX: &str = "createdAt_ttl";

/// `createdAt` lies up to an hour before the last reading of its bucket, so that expiry waits this much longer: nothing
/// goes before its time.
const BUCKET_SECONDS: u64 = 3_600;

/// The largest `expireAfterSeconds` that the server takes.
const EXPIRE_MAX_SECONDS: u64 = i32::MAX as u64;

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

/// What the schema should be.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    pub(super) database: Database,
    pub(super) collection: String,
    pub(super) retention: Option<Duration>,
    pub(super) validate: bool,
    pub(super) timeout: Duration,
}

impl Schema {
    /// Brings the database to what the schema should be.
    ///
    /// # Errors
    /// Always transient: nothing about the readings is wrong, so that they wait until an operator mends the database.
    pub(super) async fn ensure(&self) -> Result<Deployment, WriteError> {
        self.try_ensure().await.map_err(|error| match error {
            WriteError::Permanent { detail, .. } => WriteError::Transient { reason: "schema", detail },
            transient @ WriteError::Transient { .. } => transient,
        })
    }

    async fn try_ensure(&self) -> Result<Deployment, WriteError> {
        let deployment = self.deployment().await?;
        self.ensure_collection().await?;
        self.ensure_index(QUERY_INDEX, doc! { "deviceId": 1, "bucket": 1 }, None).await?;
        self.ensure_expiry().await?;
        if deployment == Deployment::Sharded {
            self.ensure_sharding().await?;
        }
        Ok(deployment)
    }

    async fn deployment(&self) -> Result<Deployment, WriteError> {
        let hello = within(self.timeout, self.database.run_command(doc! { "hello": 1 })).await?;
        Ok(Deployment::of(&hello))
    }

    /// The collection with its validator. A validator that is not ours is left alone unless ours is asked for.
    async fn ensure_collection(&self) -> Result<(), WriteError> {
        let Some(present) = self.present_validator().await? else {
            return self.create_collection().await;
        };
        let wanted = if self.validate {
            validator()
        } else {
            doc! {}
        };
        if present == wanted || (!self.validate && present != validator()) {
            return Ok(());
        }
        self.run(doc! { "collMod": &self.collection, "validator": wanted }).await?;
        tracing::info!(collection = self.collection, validate = self.validate, "changed the validator of the buckets");
        Ok(())
    }

    /// The collection's validator, empty when it has none; `None` when there is no collection.
    async fn present_validator(&self) -> Result<Option<Document>, WriteError> {
        let filter = doc! { "listCollections": 1, "filter": { "name": &self.collection } };
        let reply = self.run(filter).await?;
        let first = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).ok();
        let Some(found) = first.and_then(|batch| batch.first()?.as_document()) else {
            return Ok(None);
        };
        if found.get_str("type").is_ok_and(|kind| kind != "collection") {
            let detail = format!("{} is not a plain collection: it cannot hold buckets", self.collection);
            return Err(WriteError::Transient { reason: "schema", detail });
        }
        let validator = found.get_document("options").and_then(|options| options.get_document("validator"));
        Ok(Some(validator.cloned().unwrap_or_default()))
    }

    async fn create_collection(&self) -> Result<(), WriteError> {
        let mut create = doc! { "create": &self.collection };
        if self.validate {
            create.insert("validator", validator());
        }
        let created = async {
            match self.database.run_command(create).await {
                Err(error) if code(&error) == Some(NAMESPACE_EXISTS) => Ok(()), // another instance was quicker
                other => other.map(drop),
            }
        };
        within(self.timeout, created).await
    }

    /// The TTL index, with the retention that the options ask for.
    async fn ensure_expiry(&self) -> Result<(), WriteError> {
        let key = doc! { "createdAt": 1 };
        let wanted = self.retention.map(expire_after);
        let present = self.indexes().await?.into_iter().find(|index| index.keys == key);
        let Some(present) = present else {
            return match wanted {
                Some(expiry) => self.ensure_index(TTL_INDEX, key, Some(expiry)).await,
                None => Ok(()),
            };
        };
        let options = present.options.unwrap_or_default();
        let Some(expiry) = wanted else {
            self.run(doc! { "dropIndexes": &self.collection, "index": options.name }).await?;
            tracing::info!(collection = self.collection, "buckets are kept forever from now on");
            return Ok(());
        };
        if options.expire_after != Some(expiry) {
            let index = doc! { "keyPattern": key, "expireAfterSeconds": expiry.as_secs() as i64 };
            self.run(doc! { "collMod": &self.collection, "index": index }).await?;
            let (old, new) = (options.expire_after, expiry);
            tracing::info!(collection = self.collection, ?old, ?new, "changed when buckets expire");
        }
        Ok(())
    }

    async fn indexes(&self) -> Result<Vec<IndexModel>, WriteError> {
        let collection = self.database.collection::<Document>(&self.collection);
        within(self.timeout, async { collection.list_indexes().await?.try_collect().await }).await
    }

    async fn ensure_index(&self, name: &str, keys: Document, expiry: Option<Duration>) -> Result<(), WriteError> {
        let options = IndexOptions::builder().name(name.to_owned()).expire_after(expiry).build();
        let index = IndexModel::builder().keys(keys).options(options).build();
        let collection = self.database.collection::<Document>(&self.collection);
        within(self.timeout, collection.create_index(index)).await.map(drop)
    }

    /// Spreads the buckets over the shards by device. All the documents of a device are on one shard, which is why an
    /// `_id` is unique though each shard watches over its own only.
    async fn ensure_sharding(&self) -> Result<(), WriteError> {
        self.ensure_index("deviceId_hashed", doc! { "deviceId": "hashed" }, None).await?;
        let namespace = format!("{}.{}", self.database.name(), self.collection);
        let shard = doc! { "shardCollection": &namespace, "key": { "deviceId": "hashed" } };
        let sharded = async {
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
        };
        within(self.timeout, sharded).await
    }

    async fn run(&self, command: Document) -> Result<Document, WriteError> {
        within(self.timeout, self.database.run_command(command)).await
    }
}

fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(refusal) => Some(refusal.code),
        _ => None,
    }
}

fn expire_after(retention: Duration) -> Duration {
    Duration::from_secs(retention.as_secs().saturating_add(BUCKET_SECONDS).min(EXPIRE_MAX_SECONDS))
}

/// The envelope of a bucket's document. Readings are not looked at one by one: the server would check them all again
/// at each append.
fn validator() -> Document {
    let count = doc! { "bsonType": ["int", "long"], "minimum": 1 };
    let date = doc! { "bsonType": "date" };
    doc! { "$jsonSchema": {
        "bsonType": "object",
        "required": ["deviceId", "bucket", "part", "schemaVersion", "rev", "createdAt", "readingCount", "firstTs", "lastTs",
            "stats", "readings"],
        "properties": {
            "_id": { "bsonType": "string" },
            "deviceId": { "bsonType": "string", "minLength": 1, "maxLength": DEVICE_ID_MAX_BYTES as i32 },
            "bucket": &date,
            "part": { "bsonType": "int", "minimum": 0 },
            "schemaVersion": { "enum": [SCHEMA_VERSION] },
            "rev": &count,
            "createdAt": &date,
            "metadata": { "bsonType": "object" },
            "full": { "bsonType": "bool" },
            "readingCount": count,
            "firstTs": &date,
            "lastTs": date,
            "stats": { "bsonType": "object" },
            "readings": { "bsonType": "array", "minItems": 1 },
        },
    } }
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

    #[test]
    fn expiry_waits_for_the_last_reading_of_the_hour() {
        assert_eq!(expire_after(Duration::from_secs(86_400)), Duration::from_secs(90_000));
        assert_eq!(expire_after(Duration::MAX), Duration::from_secs(2_147_483_647));
    }
}
