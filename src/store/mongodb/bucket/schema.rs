//! Brings the collection of the buckets, its indexes, its validator and its sharding to what the options ask
//! for.
//!
//! All steps may be repeated, by several instances at once.

use std::time::Duration;

use bson::{Document, doc};

use super::super::check::{Expected, ExpectedValidator};
use super::super::collection::{CREATED_AT, Deployment, Kind, ManagedCollection};
use super::super::plain_schema::PlainSchema;
use super::document::PACKED_VERSION;
use crate::model::DEVICE_ID_MAX_BYTES;
use crate::store::StoreError;

/// The index that queries of older versions used.
const UNUSED_INDEX: &str = "deviceId_bucket";

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
    /// Brings the database to this schema.
    pub(super) async fn ensure(&self) -> Result<Deployment, StoreError> {
        let deployment = self.collection.deployment().await?;
        self.ensure_collection().await?;
        self.plain().ensure(deployment).await?;
        Ok(deployment)
    }

    /// The schema without the validator.
    pub(super) fn plain(&self) -> PlainSchema {
        PlainSchema {
            collection: self.collection.clone(),
            age_field: CREATED_AT,
            expiry: self.retention.map(|retention| retention.saturating_add(HOUR)),
            unused_index: Some((UNUSED_INDEX, doc! { "deviceId": 1, "bucket": 1 })),
        }
    }

    /// The state that the collection should have.
    pub(super) fn expected(&self) -> Expected {
        let own = older_validators().chain([validator()]).collect();
        let wanted = self.validate.then(validator);
        Expected { validator: Some(ExpectedValidator { wanted, own }), ..Expected::plain(self.plain()) }
    }

    /// Brings the collection and its validator to this schema. It leaves a foreign validator alone unless the
    /// options ask for a validator.
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
        let is_own = || present == validator() || older_validators().any(|older| older == present);
        if present == wanted || (!self.validate && !is_own()) {
            return Ok(());
        }
        self.collection.modify(doc! { "validator": wanted }).await?;
        let collection = self.collection.name.as_str();
        tracing::info!(collection, validate = self.validate, "changed the validator of the buckets");
        Ok(())
    }
}

/// A `$jsonSchema` of a bucket's document without its readings: the server would check all of them again at
/// each append.
fn validator() -> Document {
    schema(PACKED_VERSION, 0)
}

/// The validators of older versions, which had no deletions.
fn older_validators() -> impl Iterator<Item = Document> {
    (1..=PACKED_VERSION).map(|newest| schema(newest, 1))
}

/// `newest` is the newest schema version that it accepts. From version 3 on, a document may be packed. A
/// document has at least `min_readings`.
fn schema(newest: i32, min_readings: i32) -> Document {
    let versions: Vec<i32> = (1..=newest).collect();
    let count = |minimum: i32| doc! { "bsonType": ["int", "long"], "minimum": minimum };
    let date = doc! { "bsonType": "date" };
    let of_all = ["deviceId", "bucket", "part", "schemaVersion", "rev", "createdAt", "readingCount"];
    let of_readable = ["bytes", "firstTs", "lastTs", "stats", "readings"];
    let (mut required, mut layouts) = (of_all.to_vec(), doc! {});
    if newest < PACKED_VERSION {
        required.extend(of_readable);
    } else {
        required.extend(["firstTs", "lastTs", "stats"]);
        layouts.insert("anyOf", [doc! { "required": ["bytes", "readings"] }, doc! { "required": ["control", "data"] }]);
    }
    let mut schema = doc! {
        "bsonType": "object",
        "required": required,
        "properties": {
            "_id": { "bsonType": "string" },
            "deviceId": { "bsonType": "string", "minLength": 1, "maxLength": DEVICE_ID_MAX_BYTES as i32 },
            "bucket": &date,
            "part": { "bsonType": "int", "minimum": 0 },
            "schemaVersion": { "enum": versions },
            "rev": count(1),
            "createdAt": &date,
            "metadata": { "bsonType": "object" },
            "full": { "bsonType": "bool" },
            "readingCount": count(min_readings),
            "bytes": count(min_readings),
            "firstTs": &date,
            "lastTs": date,
            "stats": { "bsonType": "object" },
            "readings": { "bsonType": "array", "minItems": min_readings },
        },
    };
    schema.extend(layouts);
    doc! { "$jsonSchema": schema }
}
