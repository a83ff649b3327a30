//! Derives the rollups of hours by aggregation.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bson::doc;

use super::Timeseries;
use super::times::{during_hours, since};
use crate::model::{Hour, SeriesFilter};
use crate::store::metric_names::MetricNames;
use crate::store::mongodb::by_device::of_devices;
use crate::store::mongodb::layout::Derivation;
use crate::store::mongodb::rollups::{HourRollup, RollupCollection};
use crate::store::{StoreError, WriteError};

#[async_trait]
impl Derivation for Timeseries {
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

    async fn roll_up_hour(&self, hour: Hour, rollups: &RollupCollection) -> Result<u64, WriteError> {
        let of_hour = doc! { "ts": during_hours(&(hour..Hour(hour.0 + 1))) };
        let derived = self.fold(of_hour, &mut MetricNames::new(&SeriesFilter::ALL)).await?;
        rollups.bring_up_to_date(hour, derived).await
    }

    /// Derives buckets, with one query for each hour.
    async fn derive(&self, buckets: &[(Arc<str>, Hour)]) -> Result<Vec<HourRollup>, StoreError> {
        let mut by_hour: BTreeMap<Hour, Vec<&str>> = BTreeMap::new();
        for (device, hour) in buckets {
            by_hour.entry(*hour).or_default().push(device);
        }
        let mut rollups = Vec::new();
        for (hour, devices) in by_hour {
            let filter = doc! { "meta.deviceId": of_devices(&devices), "ts": during_hours(&(hour..Hour(hour.0 + 1))) };
            rollups.extend(self.fold(filter, &mut MetricNames::new(&SeriesFilter::ALL)).await?);
        }
        Ok(rollups)
    }
}
