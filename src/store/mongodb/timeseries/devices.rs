//! Lists devices, without an index of devices: seeks in the readings and in the rollups, as in bucket mode.

use std::ops::ControlFlow;

use bson::doc;
use futures_util::future::try_join;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::super::rollups::Day;
use super::super::seek::{MAX_CONCURRENT_SUMMARIES, Seek};
use super::TimeseriesStore;
use super::times::during_hours;
use crate::model::Hour;
use crate::store::metric_names::MetricNames;
use crate::store::{DeviceSummary, StoreError};

impl TimeseriesStore {
    pub(super) async fn read_devices(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<DeviceSummary>, StoreError> {
        let (mut seek, mut found) = (Seek::new(prefix, after), Vec::new());
        while found.len() < limit {
            let find = self
                .measurements
                .find(doc! { "meta.deviceId": seek.rest() })
                .sort(doc! { "meta.deviceId": 1 })
                .limit(1);
            let find = self.commands.limited(find);
            let mut next: Option<String> = None;
            let with_readings =
                self.commands.each_document(find.projection(doc! { "_id": 0, "meta.deviceId": 1 }), |measurement| {
                    next = Some(measurement.get_document("meta")?.get_str("deviceId")?.to_owned());
                    Ok(ControlFlow::Break(()))
                });
            let day = self.rollups.first_day(seek.rest());
            let ((), day) = try_join(Box::pin(with_readings), Box::pin(day)).await?;
            let Some(next) = Seek::next(next.as_deref(), day.as_ref().map(|day| day.device.as_str())) else { break };
            seek.advance(&next);
            let day = day.filter(|day| day.device == next);
            found.push((next, day));
        }
        let summaries: Vec<_> = found.into_iter().map(|(device, day)| self.summary(device, day)).collect();
        let summaries: Vec<Option<DeviceSummary>> =
            stream::iter(summaries).buffered(MAX_CONCURRENT_SUMMARIES).try_collect().await?;
        Ok(summaries.into_iter().flatten().collect())
    }

    /// What is known of a device whose first day of rollups was found. `None`, when it has just expired.
    async fn summary(&self, device: String, day: Option<Day>) -> Result<Option<DeviceSummary>, StoreError> {
        let (Some(first), Some(last)) = (self.read_end(&device, 1).await?, self.read_end(&device, -1).await?) else {
            return match day {
                Some(day) => self.rollups.summary(day).await,
                None => Ok(None),
            };
        };
        let first_ts_ms = day.map_or(first.last_ms, |day| day.first_ts_ms.min(first.last_ms));
        let hour = Hour::of(last.last_ms);
        let newest = doc! { "meta.deviceId": &device, "ts": during_hours(&(hour..Hour(hour.0 + 1))) };
        let hours = self.fold(newest, &mut MetricNames::new(&[])).await?;
        let mut metrics: Vec<_> = hours.into_iter().flat_map(|of| of.stats.stats).map(|(metric, _)| metric).collect();
        metrics.sort_unstable();
        Ok(Some(DeviceSummary {
            device: device.into(),
            metadata: last.metadata,
            metrics,
            first_ts_ms,
            last_ts_ms: last.last_ms,
        }))
    }
}
