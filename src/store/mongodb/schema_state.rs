//! Notices when a collection is dropped or replaced.
//!
//! The first write to a missing collection makes the server create it, without indexes, expiry or validator,
//! and a time-series collection as a plain one. So the state has the type and the UUID of each collection as
//! they were when the schema was ensured, and compares them with the server's list: at each ping, at each
//! turn and step of the roller, and in time-series mode after each write. If they differ, the next write
//! creates what is missing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::{Bson, Document, doc};
use tokio::sync::RwLock;

use super::collection::{Deployment, ManagedCollection, hex};
use crate::store::StoreError;

/// The collections of a store as they were when their schema was ensured.
#[derive(Debug)]
pub(super) struct SchemaState {
    /// Any collection of the database, to ask the server for its collections.
    managed: ManagedCollection,
    names: Vec<String>,
    known: RwLock<Option<Known>>,
    /// How often the schema was ensured since the start.
    ensured: AtomicU64,
}

/// The state when the schema was last ensured.
#[derive(Debug, Clone, PartialEq)]
struct Known {
    deployment: Deployment,
    collections: Collections,
}

/// The type of each collection, and the UUID that the server gave it when it was created, by name.
pub(super) type Collections = BTreeMap<String, (String, Option<String>)>;

impl SchemaState {
    /// A state before the schema is ensured. Servers up to 8 list the UUID of a time-series collection under
    /// `system.buckets.<name>`, so `names` must contain that name as well.
    pub(super) fn new(managed: ManagedCollection, names: Vec<String>) -> Self {
        Self { managed, names, known: RwLock::default(), ensured: AtomicU64::new(0) }
    }

    /// The kind of the server, once the schema is in place. Runs `ensure` unless it has succeeded since the
    /// last change.
    pub(super) async fn deployment<F>(&self, ensure: impl FnOnce() -> F) -> Result<Deployment, StoreError>
    where
        F: Future<Output = Result<Deployment, StoreError>>,
    {
        if let Some(known) = &*self.known.read().await {
            return Ok(known.deployment);
        }
        let mut known = self.known.write().await;
        if let Some(known) = &*known {
            return Ok(known.deployment);
        }
        let deployment = ensure().await?;
        *known = Some(Known { deployment, collections: self.list().await? });
        self.ensured.fetch_add(1, Ordering::SeqCst);
        Ok(deployment)
    }

    /// How often the schema was ensured since the start.
    pub(super) fn ensured(&self) -> u64 {
        self.ensured.load(Ordering::SeqCst)
    }

    /// Whether the collections are still those whose schema was ensured. If not, the next call of
    /// [`Self::deployment`] ensures it again.
    pub(super) async fn is_unchanged(&self) -> Result<bool, StoreError> {
        let Some(before) = self.known.read().await.clone() else { return Ok(false) };
        let found = self.list().await?;
        if found == before.collections {
            return Ok(true);
        }
        let mut known = self.known.write().await;
        if known.as_ref() == Some(&before) {
            *known = None;
            let is_other = |name: &&String| found.get(*name) != before.collections.get(*name);
            let collections: Vec<&str> = before.collections.keys().filter(is_other).map(String::as_str).collect();
            let collections = collections.join(", ");
            tracing::warn!(
                collections,
                "collections were dropped or replaced; tidegauge creates what is missing, with indexes and expiry"
            );
        }
        Ok(false)
    }

    /// The collections as they are now.
    pub(super) async fn list(&self) -> Result<Collections, StoreError> {
        let found = self.managed.list(doc! { "name": { "$in": &self.names } }).await?;
        Ok(found.iter().filter_map(identity).collect())
    }
}

/// The UUID of the first of these collections that has one.
pub(super) fn uuid_in(collections: &Collections, names: &[String]) -> Option<String> {
    names.iter().find_map(|name| collections.get(name)?.1.clone())
}

/// The name, type and UUID of a collection as the server lists it.
fn identity(listed: &Document) -> Option<(String, (String, Option<String>))> {
    let uuid = match listed.get_document("info").ok().and_then(|info| info.get("uuid")) {
        Some(Bson::Binary(uuid)) => Some(hex(&uuid.bytes)),
        _ => None,
    };
    Some((listed.get_str("name").ok()?.to_owned(), (listed.get_str("type").unwrap_or_default().to_owned(), uuid)))
}
