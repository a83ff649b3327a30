//! Reads the rollups of hours of devices.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bson::{Document, RawDocument, doc};
use mongodb::options::Hint;

use super::super::by_device::{ByDevice, of_devices};
use super::super::names;
use super::document::{add_hours, day_of, rollups_of};
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

impl RollupCollection {
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
        let mut visit = |document: &RawDocument| {
            add_hours(document, hours, &mut names, needs, |device| by_device.of(device))?;
            Ok(ControlFlow::Continue(()))
        };
        for filter in filters_of(devices, hours) {
            // Whole documents: a projection would cost the server more than sending them.
            let find = self.documents.find(filter).hint(Hint::Keys(doc! { "_id": 1 })).batch_size(BATCH);
            self.commands.each_document(self.commands.limited(find), &mut visit).await?;
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
            self.documents.find(of_device).sort(doc! { "_id": -1 }).hint(Hint::Keys(doc! { "_id": 1 }))
        };
        self.commands.first_readable(find, last_hour).await
    }

    /// The stored rollups of these buckets, those of emptied hours included.
    pub(in super::super) async fn stored(
        &self,
        buckets: &[(Arc<str>, Hour)],
    ) -> Result<HashMap<(Arc<str>, Hour), HourRollup>, StoreError> {
        let wanted: HashSet<&(Arc<str>, Hour)> = buckets.iter().collect();
        let of_day = |(device, hour): &(Arc<str>, Hour)| names::day_id(device, day_of(*hour));
        let ids: BTreeSet<String> = buckets.iter().map(of_day).collect();
        let devices: BTreeSet<&str> = buckets.iter().map(|(device, _)| &**device).collect();
        let devices: Vec<&str> = devices.into_iter().collect();
        let ids: Vec<String> = ids.into_iter().collect();
        let find = self.documents.find(doc! { "_id": { "$in": ids }, "deviceId": of_devices(&devices) });
        let find = find.hint(Hint::Keys(doc! { "_id": 1 })).batch_size(BATCH);
        let mut found = HashMap::new();
        let visit = |document: &RawDocument| {
            for rollup in rollups_of(document)? {
                let bucket = (Arc::clone(&rollup.device), rollup.stats.hour);
                if wanted.contains(&bucket) {
                    found.insert(bucket, rollup);
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_document(find, visit).await?;
        Ok(found)
    }
}

/// Filters of which each document of the devices and hours matches one.
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
