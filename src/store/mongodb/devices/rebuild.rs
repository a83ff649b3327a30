//! Rebuilds the device index from what is stored.
//!
//! The server says which devices have readings or rollups. The stats of all hours of a device give its
//! series, and its newest readings its metadata.
//!
//! Instances may write, delete and expire readings meanwhile. So the rebuild takes three steps for each
//! device:
//!
//! 1. It inserts an **empty entry**, unless the device has an entry. Readers skip empty entries, except the
//!    count of silent devices, which reads only the IDs (`DeviceIndex::each_id`). A writer fills an empty
//!    entry before it relies on it.
//! 2. It reads all hours of the device, and adds them to the entry, if the entry still exists. So the entry
//!    of a device that is deleted after step 1 does not come back. The statements are those of a writer
//!    (`document::put`), so they take nothing from other writers.
//! 3. If nothing is stored, because the device was deleted or has expired, it removes the entry if the entry
//!    is still empty.
//!
//! A series that is deleted while its device is read may stay in the entry: an entry may have more than is
//! stored. A rebuild that is killed leaves the index incomplete, and the next one begins again. All steps
//! may be repeated, also by several rebuilds at the same time. `completeness` says why no device is missing
//! at the end.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bson::{RawDocument, doc};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde_json::{Map, Value};

use super::super::encode::Encoder;
use super::super::layout::Layout;
use super::super::metadata;
use super::super::statements::{Outcome, Verb};
use super::super::store::MongoStore;
use super::DeviceIndex;
use super::document::{SCHEMA_VERSION, is_empty, put};
use crate::model::{Hour, Metric, SeriesFilter};
use crate::store::{DeviceSeries, DeviceSummary, StatsNeeds, Store, StoreError};

/// How many devices are added to the index at once, and how many are summed up at the same time.
const DEVICES_PER_STEP: usize = 100;
const SUMMED_UP_AT_ONCE: usize = 8;

/// The hours that one query for the series of a device covers: a year.
const HOURS_PER_QUERY: i32 = 366 * 24;

impl<L: Layout> MongoStore<L> {
    /// Rebuilds the device index, and marks it complete. See [`Store::rebuild_device_index`].
    pub(in super::super) async fn rebuild(&self) -> Result<u64, StoreError> {
        let epoch = self.devices.epoch().await?;
        let mut devices = self.layout.all_devices().await?;
        devices.extend(self.rollups.all_devices().await?);
        devices.extend(self.devices.empty_entries().await?);
        devices.sort_unstable();
        devices.dedup();
        let mut count = 0;
        for some in devices.chunks(DEVICES_PER_STEP) {
            self.devices.insert_empty(some).await?;
            let found = stream::iter(some.iter().map(|device| self.sum_up(device)).collect::<Vec<_>>());
            let found: Vec<Option<DeviceSummary>> = found.buffered(SUMMED_UP_AT_ONCE).try_collect().await?;
            let is_gone = |(device, found): (_, &Option<_>)| found.is_none().then_some(device);
            let gone: Vec<&Arc<str>> = some.iter().zip(&found).filter_map(is_gone).collect();
            let found: Vec<DeviceSummary> = found.into_iter().flatten().collect();
            self.devices.fill(&found).await?;
            self.devices.remove_empty(&gone).await?;
            count += found.len() as u64;
        }
        self.devices.complete(epoch).await?;
        Ok(count)
    }

    /// Sums up all that is stored of a device; `None` if nothing is stored.
    pub(in super::super) async fn sum_up(&self, device: &Arc<str>) -> Result<Option<DeviceSummary>, StoreError> {
        match self.span_of(device).await? {
            Some(summary) => self.with_all_hours(summary).await.map(Some),
            None => Ok(None),
        }
    }

    /// A device with its first and its last instant, from its readings if it has any, else from its rollups;
    /// `None` if it has neither.
    pub(in super::super) async fn span_of(&self, device: &Arc<str>) -> Result<Option<DeviceSummary>, StoreError> {
        let (of_readings, of_rollups) = (self.layout.span_ms(device).await?, self.rollups.span_ms(device).await?);
        let Some((first, _)) = of_rollups.into_iter().chain(of_readings).min() else { return Ok(None) };
        let last = of_readings.or(of_rollups).map_or(first, |(_, last)| last);
        Ok(Some(DeviceSummary::of_hour(Arc::clone(device), Hour::of(last), (first, last), [])))
    }

    /// Adds the series of all hours, and the newest metadata.
    pub(in super::super) async fn with_all_hours(
        &self,
        mut summary: DeviceSummary,
    ) -> Result<DeviceSummary, StoreError> {
        let device = [Arc::clone(&summary.device)];
        for hours in steps(Hour::of(summary.first_ts_ms), Hour::of(summary.last_ts_ms)) {
            let found = self.hour_stats(&device, hours, &SeriesFilter::ALL, StatsNeeds::Numbers).await?;
            let mut last_hours: BTreeMap<Metric, Hour> = BTreeMap::new();
            for hour in found.into_iter().flatten() {
                last_hours.extend(hour.stats.into_iter().map(|(metric, _)| (metric, hour.hour))); // ascending
            }
            let series = last_hours.into_iter().map(|(metric, hour)| DeviceSeries::of(metric, hour)).collect();
            summary.merge(DeviceSummary { series, ..summary.without_series() });
        }
        summary.metadata = self.layout.newest_metadata(&summary.device).await?;
        Ok(summary)
    }
}

/// The hours from `first` to `last`, those of one query after the other, from the last to the first.
///
/// Hours beyond the farthest ones are left out: only documents of other programs have them, and a walk to
/// them would take very many queries.
fn steps(first: Hour, last: Hour) -> impl Iterator<Item = Range<Hour>> {
    let [first, last] = [first, last].map(|hour| hour.0.clamp(-Hour::FARTHEST, Hour::FARTHEST));
    let mut end = last + 1;
    std::iter::from_fn(move || {
        let hours = Hour((end - HOURS_PER_QUERY).max(first))..Hour(end);
        end = hours.start.0;
        (!hours.is_empty()).then_some(hours)
    })
}

impl DeviceIndex {
    /// The devices with empty entries, which a killed rebuild has left.
    async fn empty_entries(&self) -> Result<Vec<Arc<str>>, StoreError> {
        let find = self.documents.find(doc! { "_id": { "$type": "string" }, "firstTs": { "$exists": false } });
        let mut devices = Vec::new();
        let visit = |document: &RawDocument| {
            if is_empty(document) {
                devices.push(document.get_str("_id")?.into());
            }
            Ok(())
        };
        self.commands.all_documents(find, visit).await?;
        Ok(devices)
    }

    /// Inserts empty entries of the devices that have no entry.
    async fn insert_empty(&self, devices: &[Arc<str>]) -> Result<(), StoreError> {
        let encode = |statement: &mut Encoder, device: &Arc<str>| {
            let empty = doc! { "schemaVersion": SCHEMA_VERSION, "series": {} };
            let of_device = doc! { "_id": &**device, "deviceId": &**device };
            statement.elements_of(&doc! { "q": of_device, "u": { "$setOnInsert": empty }, "upsert": true });
        };
        self.write_every(Verb::Update, devices, encode).await
    }

    /// Adds summaries to the entries of their devices that exist.
    async fn fill(&self, summaries: &[DeviceSummary]) -> Result<(), StoreError> {
        let encode = |statement: &mut Encoder, summary: &DeviceSummary| put(statement, summary, None, false);
        self.write_every(Verb::UpdateMatching, summaries, encode).await?;
        let mut with_metadata: Vec<(&DeviceSummary, Hour, Map<String, Value>)> = Vec::new();
        for summary in summaries {
            if let Some(of) = &summary.metadata {
                with_metadata.push((summary, of.hour, metadata::parse(&of.text)?));
            }
        }
        let encode = |statement: &mut Encoder, (summary, hour, object): &(&DeviceSummary, Hour, _)| {
            put(statement, summary, Some((*hour, object)), false);
        };
        self.write_every(Verb::UpdateMatching, &with_metadata, encode).await
    }

    /// Removes the entries of these devices that are empty.
    async fn remove_empty(&self, devices: &[&Arc<str>]) -> Result<(), StoreError> {
        let encode = |statement: &mut Encoder, device: &&Arc<str>| {
            let empty = doc! { "_id": &***device, "deviceId": &***device, "firstTs": { "$exists": false } };
            statement.elements_of(&doc! { "q": empty, "limit": 0 });
        };
        self.write_every(Verb::DeleteMatching, devices, encode).await
    }

    /// Sends statements, each of which has to succeed.
    async fn write_every<T>(
        &self,
        verb: Verb<'_>,
        items: &[T],
        encode: impl Fn(&mut Encoder, &T),
    ) -> Result<(), StoreError> {
        let mut failed = Ok(());
        let settle = |_: &T, outcome| {
            if let Outcome::Failed(error) = outcome {
                failed = Err(error);
            }
        };
        self.commands.write_all(verb, &self.managed.name, items, encode, settle).await?;
        failed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::{BucketWrite, Deletion, Sample};
    use crate::store::mongodb::BucketStore;
    use crate::store::mongodb::tests::Scratch;
    use crate::store::{Cause, Deletions};

    async fn write(store: &BucketStore, device: &str) {
        let samples = [(Sample { value: 1.0, offset: 0, metric: 0 }, true)];
        let metadata = Some(r#"{"floor":1}"#.into());
        let write = BucketWrite::new(device.into(), Hour(493_526), metadata, vec!["lux".into()], samples);
        store.write(&[write.into()]).await.remove(0).unwrap();
    }

    async fn listed(store: &BucketStore) -> (Vec<String>, bool) {
        let list = store.entries("", None, 10).await.unwrap();
        (list.devices.iter().map(|entry| entry.device.to_string()).collect(), list.is_incomplete)
    }

    async fn delete(store: &BucketStore, device: &str) {
        store.delete(&Deletion::of_device(device.into()), &BTreeSet::new()).await.unwrap();
    }

    #[test]
    fn the_walk_over_all_hours_ends_soon_although_a_device_has_far_instants() {
        let year = HOURS_PER_QUERY;
        let near: Vec<_> = steps(Hour(0), Hour(year)).collect();
        assert_eq!(near, [Hour(1)..Hour(year + 1), Hour(0)..Hour(1)]);
        let [year_0, year_10_000, year_200_000] = [-62_167_219_200_000, 253_402_300_800_000, 6_249_000_000_000_000];
        let far: Vec<_> = steps(Hour::of(-year_200_000), Hour::of(year_200_000)).collect();
        assert!(far.len() < 25_000, "{} queries", far.len());
        assert!(far[0].end > Hour::of(year_10_000) && far[far.len() - 1].start < Hour::of(year_0));
        assert!(far.is_sorted_by(|later, earlier| later.start == earlier.end));
        assert_eq!(steps(Hour::of(year_200_000), Hour::of(year_200_000)).count(), 1);
    }

    #[tokio::test]
    async fn a_device_that_is_deleted_during_a_rebuild_does_not_come_back() {
        let scratch = Scratch::new().await;
        let store = BucketStore::connect(scratch.options()).await.unwrap();
        let devices: [Arc<str>; 2] = ["deleted-before-it-is-read", "deleted-after-it-was-read"].map(Into::into);
        for device in &devices {
            write(&store, device).await;
        }
        let index = &store.devices;
        index.insert_empty(&devices).await.unwrap();
        let summary = store.sum_up(&devices[1]).await.unwrap().unwrap();
        for device in &devices {
            delete(&store, device).await;
        }
        index.insert_empty(&devices[..1]).await.unwrap(); // as if the deletion were before step 1
        assert_eq!(store.sum_up(&devices[0]).await.unwrap(), None);
        index.fill(&[summary]).await.unwrap();
        index.remove_empty(&[&devices[0]]).await.unwrap();
        assert_eq!(listed(&store).await, (vec![], false));
        let left = doc! { "find": "devices", "filter": { "_id": { "$type": "string" } } };
        assert_eq!(scratch.all(left).await, []);
    }

    #[tokio::test]
    async fn an_entry_that_a_writer_has_filled_is_not_removed() {
        let scratch = Scratch::new().await;
        let store = BucketStore::connect(scratch.options()).await.unwrap();
        let device: Arc<str> = "d".into();
        store.devices.insert_empty(&[Arc::clone(&device)]).await.unwrap();
        assert_eq!(store.sum_up(&device).await.unwrap(), None);
        assert_eq!(listed(&store).await, (vec![], false), "an empty entry is no device");
        write(&store, &device).await;
        store.devices.remove_empty(&[&device]).await.unwrap();
        assert_eq!(listed(&store).await, (vec!["d".to_owned()], false));
        let entry = store.entries_of(&[device]).await.unwrap().devices.remove(0);
        assert_eq!((entry.series.len(), entry.metadata.is_some()), (1, true));
    }

    #[tokio::test]
    async fn a_rebuild_goes_on_after_one_that_was_killed() {
        let scratch = Scratch::new().await;
        let store = BucketStore::connect(scratch.options()).await.unwrap();
        for device in ["a", "b", "c"] {
            write(&store, device).await;
        }
        scratch.run(doc! { "drop": "devices" }).await;
        store.ping().await.unwrap(); // which notices it
        store.ensure_schema().await.unwrap();
        // It was killed after the first device was filled, and before the second one was.
        let devices: [Arc<str>; 3] = ["a", "b", "expired-meanwhile"].map(Into::into);
        store.devices.insert_empty(&devices).await.unwrap();
        store.devices.fill(&[store.sum_up(&devices[0]).await.unwrap().unwrap()]).await.unwrap();
        assert_eq!(listed(&store).await, (vec!["a".to_owned()], true));
        assert_eq!(store.rebuild_device_index().await.unwrap(), 3);
        assert_eq!(listed(&store).await, (["a", "b", "c"].map(str::to_owned).to_vec(), false));
        assert_eq!(store.devices.empty_entries().await.unwrap(), []);
    }

    #[tokio::test]
    async fn an_index_that_was_dropped_during_its_rebuild_stays_incomplete() {
        let scratch = Scratch::new().await;
        let store = BucketStore::connect(scratch.options()).await.unwrap();
        write(&store, "a").await;
        let epoch = store.devices.epoch().await.unwrap();
        scratch.run(doc! { "drop": "devices" }).await;
        for is_created_again in [false, true] {
            if is_created_again {
                store.ping().await.unwrap();
                store.ensure_schema().await.unwrap();
            }
            let error = store.devices.complete(epoch).await.unwrap_err();
            assert_eq!(error.cause, Cause::Schema, "{error}");
            assert!(!store.has_all_devices().await.unwrap());
        }
    }
}
