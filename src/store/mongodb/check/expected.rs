//! The state that a collection should have.

use std::time::Duration;

use bson::{Document, doc};

use super::super::collection::{Kind, ManagedCollection};
use super::super::plain_schema::{DEVICE_FIELD, PlainSchema};
use super::ID_INDEX;

/// The state that a collection should have.
#[derive(Debug, Clone)]
pub struct Expected {
    pub(in super::super) collection: ManagedCollection,
    pub(in super::super) kind: Kind,
    /// The index that queries need beside that of `_id`s: its name and its keys.
    pub(in super::super) index: (&'static str, Document),
    /// The age at which documents or measurements expire; `None` keeps them forever.
    pub(in super::super) expiry: Option<Duration>,
    /// The validator; `None`: the collection has none of tidegauge's.
    pub(in super::super) validator: Option<ExpectedValidator>,
    /// The option `timeseries` of a new time series, and its fields about the span.
    pub(in super::super) timeseries: Option<(Document, Document)>,
    /// The field of the shard key, which is hashed.
    pub(in super::super) device_field: &'static str,
    /// Whether the collection has data that devices send.
    ///
    /// The collections of the notes of instances and of operators' metadata have none. They are small, are
    /// not sharded, and are created when they are needed.
    pub(in super::super) is_of_devices: bool,
    /// Whether the collection has the readings, whose expiry becomes shorter only once closed hours are
    /// rolled up.
    pub(in super::super) is_of_readings: bool,
}

/// The validator that a collection should have.
#[derive(Debug, Clone)]
pub(in super::super) struct ExpectedValidator {
    /// Whether the options ask for tidegauge's validator.
    pub(in super::super) is_wanted: bool,
    /// The validator that tidegauge creates.
    pub(in super::super) own: Document,
}

impl Expected {
    /// The state of a collection of documents with this schema.
    pub(in super::super) fn plain(schema: PlainSchema) -> Self {
        Self {
            index: (schema.age_field, doc! { schema.age_field: 1 }),
            kind: Kind::Plain,
            expiry: schema.expiry,
            collection: schema.collection,
            validator: None,
            timeseries: None,
            device_field: DEVICE_FIELD,
            is_of_devices: true,
            is_of_readings: false,
        }
    }

    /// The state of the collection with the notes of the instances.
    pub(in super::super) fn notes(schema: PlainSchema) -> Self {
        Self { is_of_devices: false, ..Self::plain(schema) }
    }

    /// The state of the collection with the metadata that operators have set.
    ///
    /// It never expires, and needs no index but that of `_id`s.
    pub(in super::super) fn operator_metadata(collection: ManagedCollection) -> Self {
        let schema = PlainSchema { collection, age_field: "_id", expiry: None };
        Self { index: (ID_INDEX, doc! { "_id": 1 }), ..Self::notes(schema) }
    }

    pub(super) fn name(&self) -> &str {
        &self.collection.name
    }
}
