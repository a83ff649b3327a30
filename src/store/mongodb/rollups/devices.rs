//! The devices that have rollups, which may be kept longer than their readings.

use std::ops::ControlFlow;
use std::sync::Arc;

use bson::doc;
use mongodb::options::Hint;

use super::super::names;
use super::RollupCollection;
use super::columns::{COLUMNS, METRICS};
use super::document::Day;
use crate::model::Hour;
use crate::store::StoreError;

impl RollupCollection {
    /// Whether there is no rollup.
    pub(in super::super) async fn is_empty(&self) -> Result<bool, StoreError> {
        let mut is_empty = true;
        let visit = |_: &_| {
            is_empty = false;
            Ok(ControlFlow::Break(()))
        };
        let find = self.documents.find(doc! {}).projection(doc! { "_id": 1 }).limit(1);
        self.commands.each_document(self.commands.limited(find), visit).await?;
        Ok(is_empty)
    }

    /// The devices that have rollups, each once, in any order. The server looks at all rollups.
    pub(in super::super) async fn all_devices(&self) -> Result<Vec<Arc<str>>, StoreError> {
        self.commands.distinct(&self.documents, "$deviceId").await
    }

    /// The first and the last instant of a device that has rollups, in Unix milliseconds.
    pub(in super::super) async fn span_ms(&self, device: &str) -> Result<Option<(i64, i64)>, StoreError> {
        let (first, last) = (self.day_at_end(device, 1).await?, self.day_at_end(device, -1).await?);
        Ok(first.zip(last).map(|(first, last)| (first.first_ts_ms, last.last_ts_ms)))
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
