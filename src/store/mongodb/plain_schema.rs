//! The schema of a collection of documents: when they expire, and by which field they are sharded.

use std::time::Duration;

use bson::doc;

use super::collection::{Deployment, Kind, ManagedCollection};
use crate::store::StoreError;

/// The field of the shard key.
pub(super) const DEVICE_FIELD: &str = "deviceId";

/// The schema that the options ask for, apart from the index of `_id`s and the validator.
#[derive(Debug, Clone)]
pub(super) struct PlainSchema {
    pub(super) collection: ManagedCollection,
    /// The field that expiry counts from. It has an index of its name, also if documents are kept forever.
    pub(super) age_field: &'static str,
    /// The age at which documents expire; `None` keeps them forever.
    pub(super) expiry: Option<Duration>,
}

impl PlainSchema {
    /// Creates the collection if it is missing, and brings it to this schema.
    pub(super) async fn ensure(&self, deployment: Deployment) -> Result<(), StoreError> {
        self.ensure_unsharded().await?;
        self.collection.ensure_sharding(deployment, DEVICE_FIELD).await
    }

    /// Does the same as [`Self::ensure`] for a collection that stays on one shard.
    pub(super) async fn ensure_unsharded(&self) -> Result<(), StoreError> {
        if self.collection.present(Kind::Plain).await?.is_none() {
            self.collection.create(doc! {}).await?;
        }
        self.collection.ensure_expiry(self.age_field, self.expiry, true).await
    }
}
