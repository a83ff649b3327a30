//! The metadata of devices: what they have sent, and what operators have set.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::devices::DevicePage;
use super::{Missing, Queries, QueryError};
use crate::model::OperatorMetadata;
use crate::store::DeviceMetadata;

/// The metadata that a device has sent, and that operators have set for it.
#[derive(Debug, Clone, Default)]
pub struct TwoAuthors {
    /// The device's own metadata, as the text of a JSON object.
    pub own: Option<Arc<str>>,
    /// The keys that operators have set.
    pub operator: OperatorMetadata,
    /// `Some`: the device index may lack metadata that the device has sent.
    pub partial: Option<Missing>,
    /// Whether the device has sent anything, or operators have set metadata.
    pub is_known: bool,
}

impl Queries {
    /// Returns the metadata of a device, by its stored ID. It has all acknowledged changes.
    ///
    /// # Errors
    /// If the store does not answer, or acknowledged readings and changes wait because pending is full.
    pub async fn metadata(&self, device: &Arc<str>) -> Result<TwoAuthors, QueryError> {
        let mut operator = self.all_operator_metadata(std::slice::from_ref(device)).await?;
        let mut page = self.page_of(self.deadline(), vec![Arc::clone(device)]).await?;
        if page.partial == Some(Missing::Stored) {
            return Err(QueryError::incomplete(Missing::Stored));
        }
        let entry = page.devices.pop();
        let operator = operator.remove(device).unwrap_or_default();
        let is_known = entry.is_some() || !operator.is_empty();
        let own = entry.and_then(|entry| Some(entry.metadata?.text));
        Ok(TwoAuthors { own, operator, partial: page.partial, is_known })
    }

    /// Returns those of `devices` that have not sent anything, each once.
    ///
    /// All IDs are stored IDs.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn devices_without_readings(&self, mut devices: Vec<Arc<str>>) -> Result<Vec<Arc<str>>, QueryError> {
        devices.sort_unstable();
        devices.dedup();
        if !devices.is_empty() {
            let page = self.page_of(self.deadline(), devices.clone()).await?;
            if page.partial == Some(Missing::Stored) {
                return Err(QueryError::incomplete(Missing::Stored));
            }
            let known: HashSet<Arc<str>> = page.devices.into_iter().map(|entry| entry.device).collect();
            devices.retain(|device| !known.contains(device));
        }
        Ok(devices)
    }

    /// Returns the metadata that devices have sent, without the keys of operators. All IDs are stored IDs.
    ///
    /// # Errors
    /// If something may be missing.
    pub async fn own_metadata(&self, devices: Vec<Arc<str>>) -> Result<Vec<(Arc<str>, Arc<str>)>, QueryError> {
        if self.catch_up().await.is_some() {
            return Err(QueryError::Lagging);
        }
        let page = self.page_of(self.deadline(), devices).await?;
        if let Some(missing) = page.partial {
            return Err(QueryError::incomplete(missing));
        }
        let own = page.devices.into_iter().filter_map(|entry| Some((entry.device, entry.metadata?.text)));
        Ok(own.collect())
    }

    /// Returns the metadata that operators have set for the first `limit` devices whose stored IDs start with
    /// `prefix` and are greater than `after`, sorted by stored ID.
    ///
    /// # Errors
    /// If the store does not answer, or acknowledged changes wait because pending is full.
    pub async fn list_operator_metadata(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(Arc<str>, OperatorMetadata)>, QueryError> {
        if self.catch_up().await.is_some() {
            return Err(QueryError::Lagging);
        }
        let (found, _) = self.operator_metadata_after(self.deadline(), prefix, after, limit).await?;
        Ok(found.into_iter().take(limit).collect())
    }

    /// Returns the metadata that operators have set for devices after `after`.
    ///
    /// These are devices whose stored ID starts with `prefix` and is greater than `after`. If the second
    /// value is `None`, the map has all of them. If it is an ID, the map has all devices up to this ID, at
    /// least `limit` of them, and later devices may be missing.
    pub(super) async fn operator_metadata_after(
        &self,
        deadline: Instant,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(BTreeMap<Arc<str>, OperatorMetadata>, Option<Arc<str>>), QueryError> {
        let waiting = self.pipeline.list_waiting_metadata(prefix, after); // first: they may be stored a moment later
        let stored = self.store.operator_metadata().list_metadata(prefix, after, limit);
        let stored = self.ask(deadline, stored).await?;
        let until = stored.last().filter(|_| stored.len() == limit).map(|(last, _)| Arc::clone(last));
        let mut found: BTreeMap<Arc<str>, OperatorMetadata> = stored.into_iter().collect();
        for (device, change) in waiting {
            found.entry(device).or_default().merge(change);
        }
        Ok((found, until))
    }

    /// Returns the metadata that operators have set for these devices, by stored ID. It has all acknowledged
    /// changes.
    ///
    /// # Errors
    /// If the store does not answer, or acknowledged changes wait because pending is full.
    pub async fn all_operator_metadata(
        &self,
        devices: &[Arc<str>],
    ) -> Result<HashMap<Arc<str>, OperatorMetadata>, QueryError> {
        if self.catch_up().await.is_some() {
            return Err(QueryError::Lagging);
        }
        self.operator_metadata(self.deadline(), devices).await
    }

    /// Returns the metadata that operators have set for these devices, by stored ID.
    pub(super) async fn operator_metadata(
        &self,
        deadline: Instant,
        devices: &[Arc<str>],
    ) -> Result<HashMap<Arc<str>, OperatorMetadata>, QueryError> {
        let waiting = self.pipeline.waiting_metadata(devices); // before the store: they may be stored meanwhile
        let mut found = self.ask(deadline, self.store.operator_metadata().metadata_of(devices)).await?;
        for (device, change) in waiting {
            found.entry(device).or_default().merge(change);
        }
        Ok(found)
    }

    /// Completes `described`, which has the metadata that operators have set for devices up to the ID
    /// `until`. Adds the metadata for the devices of a page after this ID. If `until` is `None`, `described`
    /// has all devices.
    pub(super) async fn with_rest(
        &self,
        deadline: Instant,
        described: BTreeMap<Arc<str>, OperatorMetadata>,
        until: Option<Arc<str>>,
        page: &DevicePage,
    ) -> Result<HashMap<Arc<str>, OperatorMetadata>, QueryError> {
        let mut described: HashMap<_, _> = described.into_iter().collect();
        let ids = page.devices.iter().map(|entry| &entry.device);
        let rest: Vec<Arc<str>> = ids.filter(|id| until.as_ref().is_some_and(|until| *id > until)).cloned().collect();
        if !rest.is_empty() {
            described.extend(self.operator_metadata(deadline, &rest).await?);
        }
        Ok(described)
    }

    /// Replaces the own metadata of the devices of a page by the metadata in effect.
    pub(super) fn with_operator_metadata(
        &self,
        mut page: DevicePage,
        operator: Result<HashMap<Arc<str>, OperatorMetadata>, QueryError>,
    ) -> Result<DevicePage, QueryError> {
        let devices = || page.devices.iter().map(|entry| Arc::clone(&entry.device)).collect::<Vec<_>>();
        let operator = match operator {
            Ok(operator) => operator,
            Err(_) if page.devices.is_empty() => return Ok(page),
            // The store does not answer, and the page says so. Only the changes that are not stored yet are
            // known.
            Err(_) if page.partial == Some(Missing::Stored) => {
                self.pipeline.waiting_metadata(&devices()).into_iter().collect()
            }
            Err(error) => return Err(error),
        };
        for entry in &mut page.devices {
            if let Some(operator) = operator.get(&entry.device) {
                entry.metadata = in_effect(entry.metadata.as_ref(), operator);
            }
        }
        Ok(page)
    }
}

/// Returns the metadata in effect: the own keys of the device, overridden by those of operators.
pub(super) fn in_effect(own: Option<&DeviceMetadata>, operator: &OperatorMetadata) -> Option<DeviceMetadata> {
    let hour = own.map_or(DeviceMetadata::UNKNOWN_HOUR, |own| own.hour);
    let text = operator.over(own.map(|own| &own.text))?;
    Some(DeviceMetadata { hour, text })
}
