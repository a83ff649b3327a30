//! Finds devices by their rollups, which may be kept longer than their readings.

use bson::{Bson, doc};

use super::RollupCollection;
use super::document::Day;
use crate::model::Hour;
use crate::store::{DeviceSummary, StoreError};

impl RollupCollection {
    /// The first day of the first device whose ID matches `ids`.
    pub(in super::super) async fn first_day(&self, ids: impl Into<Bson>) -> Result<Option<Day>, StoreError> {
        self.day_at_end(ids.into(), 1).await
    }

    /// The summary of a device that has only rollups, which have no metadata.
    pub(in super::super) async fn summary(&self, first: Day) -> Result<Option<DeviceSummary>, StoreError> {
        let Some(last) = self.day_at_end(first.device.as_str().into(), -1).await? else { return Ok(None) };
        let span_ms = (first.first_ts_ms, last.last_ts_ms);
        Ok(Some(DeviceSummary::of_hour(last.device.into(), Hour::of(last.last_ts_ms), span_ms, last.metrics)))
    }

    /// The last instant of a device that has rollups, in Unix milliseconds.
    pub(in super::super) async fn last_ts_ms(&self, device: &str) -> Result<Option<i64>, StoreError> {
        Ok(self.day_at_end(device.into(), -1).await?.map(|day| day.last_ts_ms))
    }

    /// The first document (`direction` 1) or the last (-1), by device and day. One seek in the index.
    async fn day_at_end(&self, ids: Bson, direction: i32) -> Result<Option<Day>, StoreError> {
        let find = || {
            let sort = doc! { "deviceId": direction, "day": direction };
            let fields = doc! { "deviceId": 1, "day": 1, "schemaVersion": 1, "hours": 1 };
            self.documents.find(doc! { "deviceId": ids.clone() }).sort(sort).projection(fields)
        };
        self.commands.first_readable(find, Day::decode).await
    }
}
