//! Derives the rollups of hours from their measurements.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bson::doc;

use super::Timeseries;
use super::times::{during_hours, since};
use crate::model::{Hour, SeriesFilter};
use crate::store::metric_names::MetricNames;
use crate::store::mongodb::layout::Derivation;
use crate::store::mongodb::rollups::{HourRollup, Missing, RollupCollection};
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
        let derived = self.gather(of_hour).await?.rollups(&mut MetricNames::new(&SeriesFilter::ALL)).collect();
        rollups.bring_up_to_date(hour, derived).await
    }

    async fn derive(&self, buckets: &[(Arc<str>, Hour)]) -> Result<Vec<HourRollup>, StoreError> {
        let mut by_hour: BTreeMap<Hour, Vec<Arc<str>>> = BTreeMap::new();
        for (device, hour) in buckets {
            by_hour.entry(*hour).or_default().push(Arc::clone(device));
        }
        let of_hour = |(hour, devices)| Missing { devices, runs: vec![hour..Hour(hour.0 + 1)] };
        let of: Vec<Missing> = by_hour.into_iter().map(of_hour).collect();
        self.fold(&of, &SeriesFilter::ALL).await
    }
}
