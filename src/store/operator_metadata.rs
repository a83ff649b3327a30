//! The metadata that operators have set for devices: the part of a store that keeps it.
//!
//! It is apart from the device index. The index is derived from the readings, and a device leaves it with its
//! last readings; what an operator has set stays until an operator removes it, also for a device that has not
//! sent anything.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::StoreError;
use crate::model::OperatorMetadata;

/// The metadata that operators have set for devices, by stored ID.
#[async_trait]
pub trait OperatorMetadataStore: Send + Sync {
    /// Merges changes into the stored metadata. Ok means that all changes are durable.
    ///
    /// A change may be merged any number of times, by any number of instances.
    async fn merge_metadata(&self, changes: &[(Arc<str>, OperatorMetadata)]) -> Result<(), StoreError>;

    /// Returns the stored metadata of these devices.
    async fn metadata_of(&self, devices: &[Arc<str>]) -> Result<HashMap<Arc<str>, OperatorMetadata>, StoreError>;

    /// Returns the stored metadata of up to `limit` devices, ascending by ID.
    ///
    /// Their IDs start with `prefix`, and are greater than `after` (bytewise).
    async fn list_metadata(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(Arc<str>, OperatorMetadata)>, StoreError>;
}
