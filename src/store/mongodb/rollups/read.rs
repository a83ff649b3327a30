//! Reads the rollups of hours, and finds the devices that have rollups, which may be kept longer than their
//! readings.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use bson::{Document, RawDocument, RawDocumentBuf, doc};
use mongodb::action::Find;
use mongodb::options::Hint;

use super::super::by_device::{ByDevice, of_devices};
use super::super::names;
use super::document::{add_hours, day_of, rollups_of, span_of};
use super::{HourRollup, RollupCollection};
use crate::model::{Hour, Metric, SeriesFilter};
use crate::store::metric_names::MetricNames;
use crate::store::{HourStats, StatsNeeds, StoreError};

/// The documents of one batch: a month of many devices fits into one reply, or as much as a reply can hold.
const BATCH: u32 = 10_000;

/// The most devices of one query, each of which is a range of `_id`s.
const DEVICES_MAX: usize = 250;

/// The most days that are named by their `_id`s. Each costs the server a third of a range.
const NAMED_DAYS_MAX: usize = 2;

/// The most documents of one query that names them by their `_id`s: some 300 kB, if device IDs are long.
const IDS_MAX: usize = 1_000;

impl RollupCollection {
    /// A query that uses the index of `_id`s.
    pub(super) fn find(&self, filter: Document) -> Find<'_, RawDocumentBuf> {
        self.documents.find(filter).hint(Hint::Keys(doc! { "_id": 1 }))
    }

    /// The hours with a rollup, of each of the devices, ascending; see [`crate::store::Store::hour_stats`].
    pub(in super::super) async fn read(
        &self,
        devices: &[Arc<str>],
        hours: &Range<Hour>,
        series: &SeriesFilter,
        needs: StatsNeeds,
    ) -> Result<Vec<Vec<HourStats>>, StoreError> {
        let mut by_device = ByDevice::new(devices, vec![Vec::new(); devices.len()]);
        if devices.is_empty() || hours.is_empty() {
            return Ok(by_device.sorted());
        }
        let mut names = MetricNames::new(series);
        let mut visit =
            |document: &RawDocument| add_hours(document, hours, &mut names, needs, |device| by_device.of(device));
        for filter in filters_of(devices, hours) {
            // Whole documents: a projection would cost the server more than sending them.
            let find = self.commands.limited(self.find(filter).batch_size(BATCH));
            self.commands.all_documents(find, &mut visit).await?;
        }
        Ok(by_device.sorted())
    }

    /// The newest of these hours that has a rollup of one of these series.
    pub(in super::super) async fn last_hour_with(
        &self,
        device: &str,
        series: &BTreeSet<Metric>,
        hours: &Range<Hour>,
    ) -> Result<Option<Hour>, StoreError> {
        let mut names = MetricNames::new(&SeriesFilter::ALL);
        let last_hour = |document: &RawDocument| {
            let mut of_day = Vec::new();
            add_hours(document, hours, &mut names, StatsNeeds::Numbers, |_| Ok(&mut of_day))?;
            let has = |hour: &HourStats| hour.stats.iter().any(|(metric, _)| series.contains(metric));
            Ok(of_day.iter().filter(|hour| has(hour)).map(|hour| hour.hour).max())
        };
        let find = || {
            let of_device = doc! { "_id": names::ids_of_days(device, hours), "deviceId": device };
            self.find(of_device).sort(doc! { "_id": -1 })
        };
        self.commands.first_readable(find, last_hour).await
    }

    /// Whether there is no rollup.
    pub(in super::super) async fn is_empty(&self) -> Result<bool, StoreError> {
        let find = || self.documents.find(doc! {}).projection(doc! { "_id": 1 });
        Ok(self.commands.first_readable(find, |_| Ok(Some(()))).await?.is_none())
    }

    /// The devices that have rollups, each once, in any order. The server looks at all rollups.
    pub(in super::super) async fn all_devices(&self) -> Result<Vec<Arc<str>>, StoreError> {
        self.commands.distinct(&self.documents, "$deviceId").await
    }

    /// The first and the last instant of a device that has rollups, in Unix milliseconds.
    pub(in super::super) async fn span_ms(&self, device: &str) -> Result<Option<(i64, i64)>, StoreError> {
        let (first, last) = (self.day_at_end(device, 1).await?, self.day_at_end(device, -1).await?);
        Ok(first.zip(last).map(|((first, _), (_, last))| (first, last)))
    }

    /// The last instant of a device that has rollups, in Unix milliseconds.
    pub(in super::super) async fn last_ts_ms(&self, device: &str) -> Result<Option<i64>, StoreError> {
        Ok(self.day_at_end(device, -1).await?.map(|(_, last)| last))
    }

    /// The first and the last instant of the first document of a device (`direction` 1), or of the last (-1).
    async fn day_at_end(&self, device: &str, direction: i32) -> Result<Option<(i64, i64)>, StoreError> {
        let all = names::ids_of_days(device, &Hour::ALL);
        let find = || self.find(doc! { "_id": all.clone(), "deviceId": device }).sort(doc! { "_id": direction });
        self.commands.first_readable(find, span_of).await
    }

    /// The stored rollups of these buckets, those of emptied hours included.
    pub(in super::super) async fn stored(
        &self,
        buckets: &[(Arc<str>, Hour)],
    ) -> Result<HashMap<(Arc<str>, Hour), HourRollup>, StoreError> {
        let wanted: HashSet<&(Arc<str>, Hour)> = buckets.iter().collect();
        let days: BTreeSet<(&str, i32)> = buckets.iter().map(|(device, hour)| (&**device, day_of(*hour))).collect();
        let days: Vec<(&str, i32)> = days.into_iter().collect();
        let mut found = HashMap::new();
        let mut visit = |document: &RawDocument| {
            for rollup in rollups_of(document)? {
                let bucket = (Arc::clone(&rollup.device), rollup.stats.hour);
                if wanted.contains(&bucket) {
                    found.insert(bucket, rollup);
                }
            }
            Ok(())
        };
        for some in days.chunks(IDS_MAX) {
            let ids: Vec<String> = some.iter().map(|(device, day)| names::day_id(device, *day)).collect();
            let mut devices: Vec<&str> = some.iter().map(|(device, _)| *device).collect();
            devices.dedup();
            let find = self.find(doc! { "_id": { "$in": ids }, "deviceId": of_devices(&devices) }).batch_size(BATCH);
            self.commands.all_documents(find, &mut visit).await?;
        }
        Ok(found)
    }
}

/// Filters for the documents of the devices and hours: each document matches one of them.
fn filters_of(devices: &[Arc<str>], hours: &Range<Hour>) -> Vec<Document> {
    let days = names::days_of(hours);
    if days.len() <= NAMED_DAYS_MAX {
        let of = |device: &Arc<str>| days.clone().map(|day| names::day_id(device, day)).collect::<Vec<_>>();
        let ids: Vec<String> = devices.iter().flat_map(of).collect();
        return vec![doc! { "_id": { "$in": ids }, "deviceId": of_devices(devices) }];
    }
    let of = |device: &Arc<str>| doc! { "_id": names::ids_of_days(device, hours), "deviceId": &**device };
    let of_some = |devices: &[Arc<str>]| doc! { "$or": devices.iter().map(of).collect::<Vec<_>>() };
    devices.chunks(DEVICES_MAX).map(of_some).collect()
}
