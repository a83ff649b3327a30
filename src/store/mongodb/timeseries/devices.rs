//! Lists devices, without an index of devices: seeks, as in bucket mode.

use std::ops::ControlFlow;

use bson::doc;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::TimeseriesStore;
use crate::model::Hour;
use crate::store::metric_names::MetricNames;
use crate::store::mongodb::by_device::within;
use crate::store::{DeviceSummary, WriteError};

/// How many devices are looked at at the same time.
const AT_ONCE: usize = 8;

/// Comes after every character of a device id, all of which are ASCII letters, digits or punctuation.
const AFTER_ALL: char = '\u{7F}';

impl TimeseriesStore {
    pub(super) async fn read_devices(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<DeviceSummary>, WriteError> {
        let after = after.filter(|&after| after >= prefix);
        let mut bound = after.map_or_else(|| doc! { "$gte": prefix }, |after| doc! { "$gt": after });
        let mut found = Vec::new();
        while found.len() < limit {
            bound.insert("$lt", format!("{prefix}{AFTER_ALL}"));
            let filter = doc! { "meta.deviceId": bound };
            let find = self.measurements.find(filter).sort(doc! { "meta.deviceId": 1 }).limit(1);
            let mut next: Option<String> = None;
            self.commands
                .each_document(find.projection(doc! { "_id": 0, "meta.deviceId": 1 }), |measurement| {
                    next = Some(measurement.get_document("meta")?.get_str("deviceId")?.to_owned());
                    Ok(ControlFlow::Break(()))
                })
                .await?;
            let Some(next) = next else { break };
            bound = doc! { "$gt": &next };
            found.push(next);
        }
        let summaries: Vec<_> = found.into_iter().map(|device| self.summary(device)).collect();
        let summaries: Vec<Option<DeviceSummary>> = stream::iter(summaries).buffered(AT_ONCE).try_collect().await?;
        Ok(summaries.into_iter().flatten().collect())
    }

    /// `None`, when its last readings have just expired.
    async fn summary(&self, device: String) -> Result<Option<DeviceSummary>, WriteError> {
        let (Some(first), Some(last)) = (self.read_end(&device, 1).await?, self.read_end(&device, -1).await?) else {
            return Ok(None);
        };
        let hour = Hour::of(last.last_ms);
        let newest = doc! { "meta.deviceId": &device, "ts": within(&(hour..Hour(hour.0 + 1))) };
        let hours = self.fold(newest, &mut MetricNames::new(&[])).await?;
        let mut metrics: Vec<_> = hours.into_iter().flat_map(|(_, of)| of.stats).map(|(metric, _)| metric).collect();
        metrics.sort_unstable();
        Ok(Some(DeviceSummary {
            device: device.into(),
            metadata: last.metadata,
            metrics,
            first_ts_ms: first.last_ms,
            last_ts_ms: last.last_ms,
        }))
    }
}
