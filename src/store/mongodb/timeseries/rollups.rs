//! Rolls hours up by aggregation.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use bson::{Document, doc};
use std::ops::ControlFlow;

use super::times::{during_hours, since};
use super::{TimeseriesStore, buckets_collection};
use crate::model::Hour;
use crate::store::metric_names::MetricNames;
use crate::store::mongodb::by_device::of_devices;
use crate::store::mongodb::rollups::HourRollup;
use crate::store::{Rollups, StoreError, WriteError};

#[async_trait]
impl Rollups for TimeseriesStore {
    async fn identity(&self) -> Result<String, StoreError> {
        self.deployment().await?;
        if !self.schema_state.is_unchanged().await? {
            self.deployment().await?;
        }
        let readings = self.schema_state.uuid_of(&[&self.collection, &buckets_collection(&self.collection)]).await?;
        let rollups = self.schema_state.uuid_of(&[self.rollups.name()]).await?;
        Ok(format!("mongodb-timeseries readings {readings} rollups {rollups}"))
    }

    async fn next_hour(&self, from: Hour) -> Result<Option<Hour>, StoreError> {
        let find = self.measurements.find(doc! { "ts": since(from.start_ms()) }).sort(doc! { "ts": 1 }).limit(1);
        let mut hour = None;
        self.commands
            .each_document(find.projection(doc! { "_id": 0, "ts": 1 }), |measurement| {
                hour = Some(Hour::of(measurement.get_datetime("ts")?.timestamp_millis()));
                Ok(ControlFlow::Break(()))
            })
            .await?;
        Ok(hour)
    }

    async fn roll_up_hour(&self, hour: Hour) -> Result<u64, WriteError> {
        self.deployment().await?;
        let rollups = self.derive(doc! { "ts": during_hours(&(hour..Hour(hour.0 + 1))) }).await?;
        let outdated = self.rollups.outdated(hour, rollups).await?;
        for outcome in self.rollups.put_all(&outdated).await {
            outcome?;
        }
        Ok(outdated.len() as u64)
    }

    async fn roll_up(&self, buckets: &[(Arc<str>, Hour)]) -> Vec<Result<(), WriteError>> {
        match self.derive_buckets(buckets).await {
            Ok(rollups) => self.put(buckets, rollups).await,
            Err(error) => vec![Err(error.into()); buckets.len()],
        }
    }
}

impl TimeseriesStore {
    async fn derive(&self, filter: Document) -> Result<Vec<HourRollup>, StoreError> {
        self.fold(filter, &mut MetricNames::new(&[])).await
    }

    /// Derives buckets, with one query for each hour.
    async fn derive_buckets(&self, buckets: &[(Arc<str>, Hour)]) -> Result<Vec<HourRollup>, StoreError> {
        self.deployment().await?;
        let mut by_hour: BTreeMap<Hour, Vec<&str>> = BTreeMap::new();
        for (device, hour) in buckets {
            by_hour.entry(*hour).or_default().push(device);
        }
        let mut rollups = Vec::new();
        for (hour, devices) in by_hour {
            let filter = doc! { "meta.deviceId": of_devices(&devices), "ts": during_hours(&(hour..Hour(hour.0 + 1))) };
            rollups.extend(self.derive(filter).await?);
        }
        Ok(rollups)
    }

    /// Of a bucket that has no readings (any more) nothing was derived, and nothing changes.
    async fn put(&self, buckets: &[(Arc<str>, Hour)], rollups: Vec<HourRollup>) -> Vec<Result<(), WriteError>> {
        let outcomes = self.rollups.put_all(&rollups).await;
        let place = |rollup: HourRollup| (rollup.device, rollup.stats.hour);
        let mut known: HashMap<(Arc<str>, Hour), Result<(), WriteError>> =
            rollups.into_iter().map(place).zip(outcomes).collect();
        buckets.iter().map(|bucket| known.remove(bucket).unwrap_or(Ok(()))).collect()
    }
}
