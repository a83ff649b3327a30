//! The store against real servers.

mod deleting;
mod devices;
mod documents;
pub(in crate::store::mongodb) mod faults;
mod foreign;
mod packed;
mod parts;
mod rollups;
mod schema;

use std::sync::Arc;
use std::time::Duration;

use bson::{Document, doc};

use super::{BucketStore, MongodbOptions};
use crate::model::{BucketWrite, Hour, HourOffset, Sample, SeriesFilter};
use crate::store::mongodb::tests::{Scratch, on_every_deployment, sharded};
use crate::store::scenarios::rolling::roll_up_hours;
use crate::store::{Cause, StatsNeeds, Store, StoreError, Written};

on_every_deployment!(two_instances);

#[tokio::test]
async fn on_a_cluster_each_device_has_its_shard() {
    let scratch = Scratch::on_a_sharded_cluster().await;
    sharded::each_device_has_its_shard(&scratch, &scratch.store_with_capacity(6).await).await;
}

#[tokio::test]
async fn a_collection_with_data_that_was_not_sharded_is_split() {
    let scratch = Scratch::on_a_sharded_cluster().await;
    sharded::what_was_not_sharded_is_split(&scratch, async |options| BucketStore::connect(options).await.unwrap())
        .await;
}

#[tokio::test]
async fn readings_wait_while_their_collection_is_sharded_by_another_key() {
    let scratch = Scratch::on_a_sharded_cluster().await;
    scratch.run(doc! { "create": "buckets" }).await;
    let namespace = format!("{}.buckets", scratch.name);
    let shard = doc! { "shardCollection": &namespace, "key": { "bucket": "hashed" } };
    scratch.client.database("admin").run_command(shard).await.unwrap();
    let error = write_one(&scratch.store().await, &write_at("d", 0..5)).await.unwrap_err();
    assert_eq!(error.cause, Cause::Schema, "{error}");
    let mend = format!(r#"sh.reshardCollection("{namespace}", {{ "deviceId": "hashed" }})"#);
    assert!(error.detail.contains(&mend), "{error}");
}

/// 2026-04-20T14:00:00Z.
const HOUR: Hour = Hour(493_526);

impl Scratch {
    async fn store(&self) -> BucketStore {
        BucketStore::connect(self.options()).await.unwrap()
    }

    async fn store_with_capacity(&self, readings: u32) -> BucketStore {
        let options = MongodbOptions { max_readings_per_document: readings, ..self.options() };
        BucketStore::connect(options).await.unwrap()
    }

    /// All the documents of the bucket collection, by `_id`.
    async fn buckets(&self) -> Vec<Document> {
        self.all(doc! { "find": "buckets", "sort": { "_id": 1 }, "batchSize": 1000 }).await
    }
}

/// Opens two instances with two capacities, far below what the scenarios write.
///
/// The writes of the scenarios then cross parts again and again.
async fn two_instances(scratch: Scratch) -> (Scratch, BucketStore, BucketStore) {
    let (one, other) = (scratch.store_with_capacity(6).await, scratch.store_with_capacity(11).await);
    (scratch, one, other)
}

/// A write of one metric at these instants; the value at an instant follows from it.
fn write_at(device: &str, offsets: impl IntoIterator<Item = HourOffset>) -> Arc<BucketWrite> {
    let samples = offsets.into_iter().map(|offset| (Sample { value: value_at(offset), offset, metric: 0 }, true));
    BucketWrite::new(device.into(), HOUR, None, vec!["lux".into()], samples).into()
}

fn value_at(offset: HourOffset) -> f64 {
    f64::from(offset % 97) + 0.5
}

/// Rolls up an hour of all devices, and returns how many rollups were written.
async fn roll_up_hour(store: &BucketStore, hour: Hour) -> Result<u64, StoreError> {
    roll_up_hours(store, hour..Hour(hour.0 + 1)).await
}

async fn write_one(store: &BucketStore, write: &Arc<BucketWrite>) -> Result<Written, StoreError> {
    store.write(std::slice::from_ref(write)).await.remove(0)
}

/// Checks that the bucket holds exactly these instants, each once, with stats that agree.
async fn expect_instants(store: &BucketStore, device: &str, offsets: impl IntoIterator<Item = HourOffset>) {
    let range = HOUR..Hour(HOUR.0 + 1);
    let found = store.contents(device, range.clone()).await.unwrap();
    let expected = write_at(device, offsets).contents.clone();
    assert_eq!(found, [(HOUR, expected.clone())]);
    let stats = store.hour_stats(&[device.into()], range, &SeriesFilter::ALL, StatsNeeds::All).await.unwrap().remove(0);
    assert_eq!(stats[0].stats, expected.stats(HOUR));
    assert_eq!(stats[0].last_ts_ms, HOUR.instant_ms(expected.span().unwrap().1));
}
