//! Derives the rollups of hours from their measurements.

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bson::{RawDocument, doc};

use super::Timeseries;
use super::times::parts_since;
use crate::model::{Hour, SeriesFilter};
use crate::store::StoreError;
use crate::store::mongodb::layout::Derivation;
use crate::store::mongodb::rollups::{HourRollup, grouped};

#[async_trait]
impl Derivation for Timeseries {
    /// Each of them costs reading and folding its measurements.
    const HOURS_PER_STEP: usize = 2_400;

    async fn next_hour(&self, from: Hour) -> Result<Option<Hour>, StoreError> {
        let mut hour = None;
        for part in parts_since(from.start_ms()) {
            let find = self.measurements.find(part).sort(doc! { "ts": 1 }).limit(1);
            let visit = |measurement: &RawDocument| {
                hour = Some(Hour::of(measurement.get_datetime("ts")?.timestamp_millis()));
                Ok(ControlFlow::Break(()))
            };
            self.commands.each_document(find.projection(doc! { "_id": 0, "ts": 1 }), visit).await?;
            if hour.is_some() {
                break;
            }
        }
        Ok(hour)
    }

    async fn derive(&self, buckets: &[(Arc<str>, Hour)]) -> Result<Vec<HourRollup>, StoreError> {
        self.fold(&grouped(buckets), &SeriesFilter::ALL).await
    }
}
