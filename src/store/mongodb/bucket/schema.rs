//! The collection of the buckets, its indexes, its validator and its sharding, brought to what the options
//! ask for.
//!
//! Everything here can be done again and again, by several instances at once.

use std::time::Duration;

use bson::{Document, doc};

use super::super::collection::{Deployment, Kind, ManagedCollection};
use super::document::SCHEMA_VERSION;
use crate::model::DEVICE_ID_MAX_BYTES;
use crate::store::StoreError;

/// The index that every query uses.
const QUERY_INDEX: &str = "deviceId_bucket";

/// `createdAt` lies up to an hour before the last reading of its bucket, so that expiry waits this much
/// longer: nothing goes before its time.
const HOUR: Duration = Duration::from_secs(3_600);

/// What the schema should be.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    pub(super) collection: ManagedCollection,
    pub(super) retention: Option<Duration>,
    pub(super) validate: bool,
}

impl Schema {
    /// Brings the database to what the schema should be.
    pub(super) async fn ensure(&self) -> Result<Deployment, StoreError> {
        let deployment = self.collection.deployment().await?;
        self.ensure_collection().await?;
        self.collection.ensure_index(QUERY_INDEX, doc! { "deviceId": 1, "bucket": 1 }).await?;
        self.collection.ensure_expiry(self.retention.map(|retention| retention.saturating_add(HOUR))).await?;
        self.collection.ensure_sharding(deployment, "deviceId").await?;
        Ok(deployment)
    }

    /// The collection with its validator. A validator that is not ours is left alone unless ours is asked
    /// for.
    async fn ensure_collection(&self) -> Result<(), StoreError> {
        let Some(present) = self.collection.present(Kind::Plain).await? else {
            let options = if self.validate {
                doc! { "validator": validator() }
            } else {
                doc! {}
            };
            return self.collection.create(options).await;
        };
        let present = present.get_document("options").and_then(|options| options.get_document("validator"));
        let present = present.cloned().unwrap_or_default();
        let wanted = if self.validate {
            validator()
        } else {
            doc! {}
        };
        if present == wanted || (!self.validate && present != validator()) {
            return Ok(());
        }
        self.collection.modify(doc! { "validator": wanted }).await?;
        let collection = self.collection.name.as_str();
        tracing::info!(collection, validate = self.validate, "changed the validator of the buckets");
        Ok(())
    }
}

/// The envelope of a bucket's document. Readings are not looked at one by one: the server would check them
/// all again at each append.
fn validator() -> Document {
    let count = doc! { "bsonType": ["int", "long"], "minimum": 1 };
    let date = doc! { "bsonType": "date" };
    doc! { "$jsonSchema": {
        "bsonType": "object",
        "required": ["deviceId", "bucket", "part", "schemaVersion", "rev", "createdAt", "readingCount", "bytes", "firstTs", "lastTs",
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
            "readingCount": &count,
            "bytes": count,
            "firstTs": &date,
            "lastTs": date,
            "stats": { "bsonType": "object" },
            "readings": { "bsonType": "array", "minItems": 1 },
        },
    } }
}
