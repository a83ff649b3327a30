//! Reads the documents of devices.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bson::{Document, RawDocument, doc};
use mongodb::options::Hint;

use super::super::by_device::of_devices;
use super::DeviceIndex;
use super::document::{decode, is_empty};
use crate::model::end_of_prefix;
use crate::store::{DeviceList, DeviceSummary, StoreError};

/// The most IDs in one reply when the IDs of all devices are read.
const IDS_BATCH: u32 = 20_000;

/// Matches the IDs of devices that start with `prefix` and are greater than `after`.
pub(in super::super) fn ids_after(prefix: &str, after: Option<&str>) -> Document {
    let after = after.filter(|after| *after >= prefix);
    let mut ids = after.map_or_else(|| doc! { "$gte": prefix }, |after| doc! { "$gt": after });
    ids.extend(end_of_prefix(prefix).map(|end| ("$lt".to_owned(), end.into())));
    ids
}

impl DeviceIndex {
    /// Returns the first devices whose ID starts with `prefix` and is after `after`.
    ///
    /// The last instant of an entry may be earlier than the last reading of the device, on the same day.
    pub(in super::super) async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DeviceList, StoreError> {
        let batch = u32::try_from(limit).unwrap_or(u32::MAX);
        let find = self
            .documents
            .find(doc! { "_id": ids_after(prefix, after) })
            .sort(doc! { "_id": 1 })
            .batch_size(batch.max(2));
        let (mut list, mut bytes) = (DeviceList::default(), 0);
        if limit == 0 {
            return Ok(list);
        }
        self.commands
            .each_document(self.commands.limited(find), |document| {
                if is_empty(document) {
                    return Ok(ControlFlow::Continue(()));
                }
                let goes_on = list.push(decode(document)?, &mut bytes) && list.devices.len() < limit;
                Ok(if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            })
            .await?;
        Ok(list)
    }

    /// Calls `visit` with the ID of each entry, also of empty ones.
    ///
    /// The server reads the IDs from the index of `_id`s, without the documents.
    pub(in super::super) async fn each_id(&self, mut visit: impl FnMut(&str)) -> Result<(), StoreError> {
        let find = self.documents.find(doc! { "_id": ids_after("", None) }).projection(doc! { "_id": 1 });
        let find = find.hint(Hint::Keys(doc! { "_id": 1 })).batch_size(IDS_BATCH);
        let visit = |document: &RawDocument| {
            visit(document.get_str("_id")?);
            Ok(())
        };
        self.commands.all_documents(self.commands.limited(find), visit).await
    }

    /// Returns one device.
    pub(in super::super) async fn one(&self, device: &str) -> Result<Option<DeviceSummary>, StoreError> {
        let mut found = self.some(&[device]).await?;
        Ok(found.remove(device))
    }

    /// Returns those of the devices that have an entry, by their IDs. Empty entries are left out.
    pub(in super::super) async fn some(
        &self,
        devices: &[&str],
    ) -> Result<HashMap<Arc<str>, DeviceSummary>, StoreError> {
        let mut found = HashMap::new();
        if devices.is_empty() {
            return Ok(found);
        }
        let find = self.documents.find(doc! { "_id": of_devices(devices), "deviceId": of_devices(devices) });
        let visit = |document: &RawDocument| {
            if !is_empty(document) {
                let summary = decode(document)?;
                found.insert(Arc::clone(&summary.device), summary);
            }
            Ok(())
        };
        self.commands.all_documents(self.commands.limited(find), visit).await?;
        Ok(found)
    }
}
