//! The metadata that operators have set: a row for each device.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::devices::successor;
use super::error::SqliteError;
use super::write::{self, Writer};
use super::{SqliteStore, history};
use crate::model::OperatorMetadata;
use crate::store::{OperatorMetadataStore, StoreError};

/// The table. `metadata` is the JSON of an [`OperatorMetadata`].
pub(super) const TABLE: &str = "
CREATE TABLE operator_metadata (
    device   TEXT NOT NULL PRIMARY KEY,
    metadata TEXT NOT NULL
) WITHOUT ROWID;";

const ONE: &str = "SELECT device, metadata FROM operator_metadata WHERE device = ?1";
const LIST: &str = "SELECT device, metadata FROM operator_metadata WHERE device >= ?1 ORDER BY device";
const PUT: &str = "INSERT INTO operator_metadata (device, metadata) VALUES (?1, ?2)
    ON CONFLICT (device) DO UPDATE SET metadata = ?2";

/// The queries that must seek in a key.
#[cfg(test)]
pub(super) const QUERIES: [&str; 2] = [ONE, LIST];

#[async_trait]
impl OperatorMetadataStore for SqliteStore {
    async fn merge_metadata(&self, changes: &[(Arc<str>, OperatorMetadata)]) -> Result<(), StoreError> {
        let changes = changes.to_vec(); // the work continues if the caller is dropped
        let merge = move |writer: &mut Writer| {
            let transaction = write::begin(&mut writer.connection)?;
            let before = transaction.total_changes();
            for (device, change) in changes {
                let known = one(&transaction, &device)?.unwrap_or_default();
                let mut merged = known.clone();
                merged.merge(change);
                merged.forget_old_removals();
                if merged != known {
                    let text = serde_json::to_string(&merged).expect("it has string keys only");
                    transaction.prepare_cached(PUT)?.execute([&*device, &text])?;
                }
            }
            history::count(&transaction, before)?;
            Ok(transaction.commit()?)
        };
        self.with_writer(merge).await.map_err(|error| StoreError::from(&error))
    }

    async fn metadata_of(&self, devices: &[Arc<str>]) -> Result<HashMap<Arc<str>, OperatorMetadata>, StoreError> {
        let devices = devices.to_vec();
        let find = move |connection: &mut Connection| {
            let transaction = connection.transaction()?;
            let found = devices.into_iter().filter_map(|device| {
                one(&transaction, &device).transpose().map(|found| found.map(|metadata| (device, metadata)))
            });
            found.collect()
        };
        self.read(find).await
    }

    async fn list_metadata(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(Arc<str>, OperatorMetadata)>, StoreError> {
        let from = after.map(successor).filter(|after| after.as_str() > prefix).unwrap_or_else(|| prefix.to_owned());
        let prefix = prefix.to_owned();
        let list = move |connection: &mut Connection| {
            let mut statement = connection.prepare_cached(LIST)?;
            let mut rows = statement.query([&from])?;
            let mut found = Vec::new();
            while found.len() < limit
                && let Some(row) = rows.next()?
            {
                let (device, metadata) = read(row)?;
                if !device.starts_with(&prefix) {
                    break;
                }
                found.push((device, metadata));
            }
            Ok(found)
        };
        self.read(list).await
    }
}

fn one(connection: &Connection, device: &str) -> Result<Option<OperatorMetadata>, SqliteError> {
    let found = connection.prepare_cached(ONE)?.query_row([device], read).optional()?;
    Ok(found.map(|(_, metadata)| metadata))
}

fn read(row: &Row<'_>) -> rusqlite::Result<(Arc<str>, OperatorMetadata)> {
    let metadata = serde_json::from_str(row.get_ref(1)?.as_str()?)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, Box::new(error)))?;
    Ok((row.get(0)?, metadata))
}
