//! Brings the collection of the buckets, its indexes, its validator and its sharding to what the options ask
//! for.
//!
//! All steps may be repeated, by several instances at once.

use std::time::Duration;

use bson::{Document, doc};

use super::super::check::{Expected, ExpectedValidator};
use super::super::collection::{CREATED_AT, Deployment, Kind, ManagedCollection};
use super::super::plain_schema::{DEVICE_FIELD, PlainSchema};
use super::document::SCHEMA_VERSION;
use crate::model::DEVICE_ID_MAX_BYTES;
use crate::store::StoreError;

/// The time that expiry waits longer, because `createdAt` is up to an hour before the last reading of its
/// bucket.
pub(super) const HOUR: Duration = Duration::from_secs(3_600);

/// The schema that the options ask for.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    pub(super) collection: ManagedCollection,
    pub(super) retention: Option<Duration>,
    pub(super) validate: bool,
}

impl Schema {
    /// Brings the database to this schema, but lets buckets expire no earlier than before.
    pub(super) async fn ensure(&self) -> Result<Deployment, StoreError> {
        let deployment = self.collection.deployment().await?;
        self.ensure_collection().await?;
        self.ensure_expiry(false).await?;
        self.collection.ensure_sharding(deployment, DEVICE_FIELD).await?;
        Ok(deployment)
    }

    /// Has buckets expire after the retention, which may be earlier than before if `may_shorten`.
    pub(super) async fn ensure_expiry(&self, may_shorten: bool) -> Result<(), StoreError> {
        let PlainSchema { collection, age_field, expiry } = self.plain();
        collection.ensure_expiry(age_field, expiry, may_shorten).await
    }

    /// The schema without its validator, in the form of other collections of documents.
    pub(super) fn plain(&self) -> PlainSchema {
        PlainSchema {
            collection: self.collection.clone(),
            age_field: CREATED_AT,
            expiry: self.retention.map(|retention| retention.saturating_add(HOUR)),
        }
    }

    /// The state that the collection should have.
    pub(super) fn expected(&self) -> Expected {
        let validator = ExpectedValidator { is_wanted: self.validate, own: validator() };
        Expected { validator: Some(validator), is_of_readings: true, ..Expected::plain(self.plain()) }
    }

    /// Brings the collection and its validator to this schema. It leaves a foreign validator alone unless the
    /// options ask for a validator.
    async fn ensure_collection(&self) -> Result<(), StoreError> {
        let wanted = if self.validate { validator() } else { Document::new() };
        let Some(present) = self.collection.present(Kind::Plain).await? else {
            let options = if self.validate {
                doc! { "validator": wanted }
            } else {
                Document::new()
            };
            return self.collection.create(options).await;
        };
        let present = present.get_document("options").and_then(|options| options.get_document("validator"));
        let present = present.cloned().unwrap_or_default();
        if present == wanted || (!self.validate && present != validator()) {
            return Ok(());
        }
        self.collection.modify(doc! { "validator": wanted }).await?;
        tracing::info!(
            collection = self.collection.name,
            validate = self.validate,
            "changed the validator of the buckets"
        );
        Ok(())
    }
}

/// A `$jsonSchema` of a bucket's document without its readings: the server would check all of them again at
/// each append.
fn validator() -> Document {
    let count = |minimum: i32| doc! { "bsonType": ["int", "long"], "minimum": minimum };
    let date = doc! { "bsonType": "date" };
    doc! { "$jsonSchema": {
        "bsonType": "object",
        "required": [
            "deviceId", "bucket", "part", "schemaVersion", "rev", CREATED_AT, "readingCount", "firstTs", "lastTs",
            "stats",
        ],
        "oneOf": [{ "required": ["bytes", "readings"] }, { "required": ["control", "data"] }],
        "properties": {
            "_id": { "bsonType": "string" },
            "deviceId": { "bsonType": "string", "minLength": 1, "maxLength": DEVICE_ID_MAX_BYTES as i32 },
            "bucket": &date,
            "part": { "bsonType": "int", "minimum": 0 },
            "schemaVersion": { "enum": [SCHEMA_VERSION] },
            "rev": count(1),
            CREATED_AT: &date,
            "metadata": { "bsonType": "object" },
            "full": { "bsonType": "bool" },
            "deletedFrom": { "bsonType": "bool" },
            "readingCount": count(0),
            "bytes": count(0),
            "firstTs": &date,
            "lastTs": date,
            "stats": { "bsonType": "object" },
            "readings": { "bsonType": "array" },
        },
    } }
}
