//! Reads the documents of devices.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bson::{Bson, doc};

use super::super::by_device::of_devices;
use super::DeviceIndex;
use super::document::decode;
use crate::store::{DeviceList, DeviceSummary, StoreError};

impl DeviceIndex {
    /// Returns the first devices whose ID matches `ids`. Their last instants may be older than their last
    /// readings, of the same day.
    pub(in super::super) async fn list(&self, ids: Bson, limit: usize) -> Result<DeviceList, StoreError> {
        let batch = u32::try_from(limit).unwrap_or(u32::MAX);
        let find = self.documents.find(doc! { "_id": ids }).sort(doc! { "_id": 1 }).batch_size(batch.max(2));
        let (mut list, mut bytes) = (DeviceList::default(), 0);
        if limit == 0 {
            return Ok(list);
        }
        self.commands
            .each_document(self.commands.limited(find), |document| {
                let goes_on = list.push(decode(document)?, &mut bytes) && list.devices.len() < limit;
                Ok(if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            })
            .await?;
        Ok(list)
    }

    /// Returns one device.
    pub(in super::super) async fn one(&self, device: &str) -> Result<Option<DeviceSummary>, StoreError> {
        let mut found = self.some(&[device]).await?;
        Ok(found.remove(device))
    }

    /// Returns those of the devices that have a document.
    pub(in super::super) async fn some(
        &self,
        devices: &[&str],
    ) -> Result<HashMap<Arc<str>, DeviceSummary>, StoreError> {
        let mut found = HashMap::new();
        if devices.is_empty() {
            return Ok(found);
        }
        let find = self.documents.find(doc! { "_id": of_devices(devices), "deviceId": of_devices(devices) });
        self.commands
            .each_document(self.commands.limited(find), |document| {
                let summary = decode(document)?;
                found.insert(Arc::clone(&summary.device), summary);
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        Ok(found)
    }
}
