//! Deletions: the readings, then the rollups, then the device index.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::collection::Deployment;
use super::layout::Layout;
use super::store::MongoStore;
use crate::model::{Deletion, Hour, Metric};
use crate::store::{Deleted, WriteError};

impl<L: Layout> MongoStore<L> {
    /// See [`crate::store::Deletions::delete`].
    pub(super) async fn delete_all(
        &self,
        deletion: &Deletion,
        unanswered: &BTreeSet<Hour>,
        deployment: Deployment,
    ) -> Result<Deleted, WriteError> {
        if L::DELETES_DEVICES_ONLY.is_some() {
            let _alone = self.changes.write().await;
            let deleted = self.layout.delete(deletion, unanswered, deployment).await?;
            self.rollups.delete_device(&deletion.device).await?;
            self.update_entry(deletion).await?;
            return Ok(deleted);
        }
        let mut deleted = self.layout.delete(deletion, unanswered, deployment).await?;
        let rolled_up = self.rollups.delete(deletion, &deleted.hours).await?;
        let of_hour = |hour: &Hour| (Arc::clone(&deletion.device), *hour);
        let again: Vec<(Arc<str>, Hour)> = deleted.hours.intersection(&rolled_up).map(of_hour).collect();
        for buckets in again.chunks(L::HOURS_PER_STEP) {
            let derived = self.layout.derive(buckets).await?;
            for outcome in self.rollups.put_derived(buckets, derived).await {
                match outcome {
                    // It has no rollup then, as after a late reading.
                    Err(error) if error.is_permanent() => {
                        let device = &*deletion.device;
                        tracing::error!(device, %error, "an hour cannot be rolled up after a deletion");
                    }
                    outcome => outcome?,
                }
            }
        }
        deleted.hours.retain(|hour| !rolled_up.contains(hour));
        let _alone = self.changes.write().await;
        self.update_entry(deletion).await?;
        Ok(deleted)
    }

    /// See [`crate::store::Instances::check_entry`].
    pub(super) async fn check_device(&self, device: &Arc<str>) -> Result<(), WriteError> {
        {
            let _alone = self.changes.write().await; // writes that rely on the entry have ended
            self.devices.forget(device);
        }
        if self.devices.one(device).await?.is_some() {
            return Ok(());
        }
        let Some(summary) = self.summary(device).await? else { return Ok(()) };
        let summary = self.with_all_hours(summary).await?;
        Ok(self.devices.add(&[summary]).await?)
    }

    /// Brings the entry of a device in the device index up to date.
    async fn update_entry(&self, deletion: &Deletion) -> Result<(), WriteError> {
        let device = &*deletion.device;
        let Some(summary) = self.summary(device).await? else { return self.devices.remove(device).await };
        let first_ts_ms = summary.first_ts_ms;
        let series: Vec<Metric> = match self.devices.one(device).await? {
            Some(entry) if deletion.range_ms.is_none() => {
                let series = entry.series.into_iter().map(|series| series.metric);
                series.filter(|metric| deletion.series.matches(metric)).collect()
            }
            Some(_) => Vec::new(),
            None => {
                let summary = self.with_all_hours(summary).await?;
                return Ok(self.devices.add(&[summary]).await?);
            }
        };
        self.devices.correct(device, first_ts_ms, &series).await
    }
}
