//! The store against a real server, whose address is in `TIDEGAUGE_TEST_MONGODB_URI`: a replica set that was started with
//! `--setParameter enableTestCommands=1`.

mod documents;
mod faults;
#[path = "../../../../../tests/harness/mongod.rs"]
mod mongod;
mod parts;
mod schema;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::{Document, doc};
use mongodb::Client;

use super::{BucketStore, MongodbOptions};
use crate::model::{BucketWrite, Hour, HourOffset, Sample};
use crate::store::scenarios::store_scenarios;
use crate::store::{Store, WriteError, Written};

store_scenarios!(two_instances);

/// 2026-04-20T14:00:00Z.
const HOUR: Hour = Hour(493_526);

/// A database of its own for a test. It is dropped at the end.
struct Scratch {
    uri: String,
    name: String,
    client: Client,
}

impl Scratch {
    async fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tidegauge_test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let uri = mongod::uri().to_owned();
        Self { client: Client::with_uri_str(&uri).await.unwrap(), uri, name }
    }

    fn options(&self) -> MongodbOptions {
        MongodbOptions {
            uri: self.uri.clone(),
            database: self.name.clone(),
            collection: "buckets".into(),
            rollups_collection: "rollups".into(),
            timeout: Duration::from_secs(10),
            max_readings_per_document: 1000,
            retention: None,
            rollups_retention: None,
            validate: false,
            max_connections: 10,
        }
    }

    async fn store(&self) -> BucketStore {
        BucketStore::connect(self.options()).await.unwrap()
    }

    async fn store_with_capacity(&self, readings: u32) -> BucketStore {
        let options = MongodbOptions { max_readings_per_document: readings, ..self.options() };
        BucketStore::connect(options).await.unwrap()
    }

    async fn run(&self, command: Document) -> Document {
        self.client.database(&self.name).run_command(command).await.unwrap()
    }

    /// The documents that a command returns a cursor for.
    async fn all(&self, command: Document) -> Vec<Document> {
        let reply = self.run(command).await;
        let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        batch.iter().map(|document| document.as_document().unwrap().clone()).collect()
    }

    /// All the documents of the bucket collection, by `_id`.
    async fn buckets(&self) -> Vec<Document> {
        self.all(doc! { "find": "buckets", "sort": { "_id": 1 }, "batchSize": 1000 }).await
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let (uri, name) = (self.uri.clone(), self.name.clone());
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { Client::with_uri_str(&uri).await?.database(&name).drop().await })
        });
        assert!(dropping.join().unwrap().is_ok() || std::thread::panicking(), "the database could not be dropped");
    }
}

/// Capacities far below what the scenarios write, and different ones, so that they cross parts again and again.
async fn two_instances() -> (Scratch, BucketStore, BucketStore) {
    let scratch = Scratch::new().await;
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

async fn write_one(store: &BucketStore, write: &Arc<BucketWrite>) -> Result<Written, WriteError> {
    store.write(std::slice::from_ref(write)).await.remove(0)
}

/// Checks that the bucket holds exactly these instants, each once, with stats that agree.
async fn expect_instants(store: &BucketStore, device: &str, offsets: impl IntoIterator<Item = HourOffset>) {
    let range = HOUR..Hour(HOUR.0 + 1);
    let found = store.contents(device, range.clone(), usize::MAX).await.unwrap();
    let expected = write_at(device, offsets).contents.clone();
    assert_eq!(found, [(HOUR, expected.clone())]);
    let stats = store.hour_stats(&[device.into()], range, &[]).await.unwrap().remove(0);
    assert_eq!(stats[0].stats, expected.stats());
    assert_eq!(stats[0].last_ts_ms, HOUR.instant_ms(expected.span().unwrap().1));
}
