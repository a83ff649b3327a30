//! The store against a real server; see the tests of bucket mode.

mod documents;
mod faults;
mod foreign;
mod schema;

use std::sync::Arc;
use std::time::Duration;

use bson::{Document, doc};

use super::TimeseriesStore;
use crate::config;
use crate::model::{BucketWrite, Hour, HourOffset, Sample, SeriesFilter};
use crate::store::mongodb::MongodbOptions;
use crate::store::mongodb::tests::{Scratch, on_every_deployment, sharded};
use crate::store::{Cause, StatsNeeds, Store, StoreError, Written};

on_every_deployment!(two_instances, first_value_stays);

mod deleting {
    use super::{Scratch, Store, two_instances};
    use crate::store::scenarios::store_scenarios;

    async fn open() -> (Scratch, impl Store, impl Store) {
        two_instances(Scratch::on_a_sharded_cluster().await).await
    }

    store_scenarios!(@deleting_devices open);
}

#[tokio::test]
async fn on_a_cluster_each_device_has_its_shard() {
    let scratch = Scratch::on_a_sharded_cluster().await;
    sharded::each_device_has_its_shard(&scratch, &store(&scratch).await).await;
}

#[tokio::test]
async fn a_collection_with_data_that_was_not_sharded_is_split() {
    let scratch = Scratch::on_a_sharded_cluster().await;
    let open = async |options| TimeseriesStore::connect(options, config::Timeseries::default()).await.unwrap();
    sharded::what_was_not_sharded_is_split(&scratch, open).await;
}

/// 2026-04-20T14:00:00Z.
const HOUR: Hour = Hour(493_526);

/// Opens two instances that remember few devices, so that they forget some often.
async fn two_instances(scratch: Scratch) -> (Scratch, TimeseriesStore, TimeseriesStore) {
    let options = || config::Timeseries { max_known_devices: 3, ..config::Timeseries::default() };
    let one = TimeseriesStore::connect(scratch.options(), options()).await.unwrap();
    let other = TimeseriesStore::connect(scratch.options(), options()).await.unwrap();
    (scratch, one, other)
}

async fn store(scratch: &Scratch) -> TimeseriesStore {
    TimeseriesStore::connect(scratch.options(), config::Timeseries::default()).await.unwrap()
}

/// A write of one metric at these instants; the value at an instant follows from it.
fn write_at(device: &str, offsets: impl IntoIterator<Item = HourOffset>) -> Arc<BucketWrite> {
    let samples = offsets.into_iter().map(|offset| (Sample { value: value_at(offset), offset, metric: 0 }, true));
    BucketWrite::new(device.into(), HOUR, None, vec!["lux".into()], samples).into()
}

fn value_at(offset: HourOffset) -> f64 {
    f64::from(offset % 97) + 0.5
}

async fn write_one(store: &TimeseriesStore, write: &Arc<BucketWrite>) -> Result<Written, StoreError> {
    store.write(std::slice::from_ref(write)).await.remove(0)
}

/// The measurements that are stored, by device and time.
async fn measurements(scratch: &Scratch) -> Vec<Document> {
    scratch.all(doc! { "find": "readings", "sort": { "meta.deviceId": 1, "ts": 1 }, "batchSize": 10_000 }).await
}

/// Checks that exactly these instants are stored, each in one measurement.
async fn expect_instants(scratch: &Scratch, offsets: impl IntoIterator<Item = HourOffset>) {
    let found: Vec<i64> =
        measurements(scratch).await.iter().map(|one| one.get_datetime("ts").unwrap().timestamp_millis()).collect();
    let expected: Vec<i64> = offsets.into_iter().map(|offset| HOUR.instant_ms(offset)).collect();
    assert_eq!(found, expected);
}
