//! Finds devices by their rollups, which may be kept longer than their readings.

use bson::doc;
use mongodb::options::Hint;

use super::super::id_walk::{Suffix, next_device};
use super::super::names;
use super::super::seek::Seek;
use super::RollupCollection;
use super::columns::{COLUMNS, METRICS};
use super::document::Day;
use crate::model::Hour;
use crate::store::{DeviceSummary, StoreError};

impl RollupCollection {
    /// The next device of a search.
    pub(in super::super) async fn next_device(&self, seek: &Seek) -> Result<Option<String>, StoreError> {
        next_device(&self.commands, &self.documents, Suffix::Day, seek).await
    }

    /// The first day of a device.
    pub(in super::super) async fn first_day(&self, device: &str) -> Result<Option<Day>, StoreError> {
        self.day_at_end(device, 1).await
    }

    /// The summary of a device that has only rollups, which have no metadata.
    pub(in super::super) async fn summary(&self, first: Day) -> Result<Option<DeviceSummary>, StoreError> {
        let Some(last) = self.day_at_end(&first.device, -1).await? else { return Ok(None) };
        let span_ms = (first.first_ts_ms, last.last_ts_ms);
        Ok(Some(DeviceSummary::of_hour(last.device.into(), Hour::of(last.last_ts_ms), span_ms, last.metrics)))
    }

    /// The last instant of a device that has rollups, in Unix milliseconds.
    pub(in super::super) async fn last_ts_ms(&self, device: &str) -> Result<Option<i64>, StoreError> {
        Ok(self.day_at_end(device, -1).await?.map(|day| day.last_ts_ms))
    }

    /// The first document of a device (`direction` 1) or the last (-1).
    async fn day_at_end(&self, device: &str, direction: i32) -> Result<Option<Day>, StoreError> {
        let all = names::ids_of_days(device, &(Hour(i32::MIN)..Hour(i32::MAX)));
        let find = || {
            let fields = doc! { "deviceId": 1, "day": 1, "schemaVersion": 1, METRICS: 1, COLUMNS: 1, "hours": 1 };
            let find = self.documents.find(doc! { "_id": all.clone(), "deviceId": device }).projection(fields);
            find.sort(doc! { "_id": direction }).hint(Hint::Keys(doc! { "_id": 1 }))
        };
        self.commands.first_readable(find, Day::decode).await
    }
}
