//! The promises of a layout on a sharded cluster: every write and every query of a device runs on one shard,
//! and no device is on two. The cluster is simulated, see `tests/harness/mongos`.

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{Bson, Document, doc};
use mongodb::Client;

use super::mongod::mongos::{Cluster, Recorded, SHARDS, Sharding, Verb, uri_of};
use super::{MongodbOptions, Scratch, mongod};
use crate::model::{BucketWrite, Day, Hour, Sample, SeriesFilter};
use crate::store::scenarios::rolling::roll_up_hours;
use crate::store::{StatsNeeds, Store};

/// Enough devices that they cannot all be on one shard by chance.
const MANY_DEVICES: usize = 30;

/// 2026-04-20T14:00:00Z.
const HOUR: Hour = Hour(493_526);

/// Checks on which shards the commands of a database ran, and on which shards its devices are.
pub(super) fn check(cluster: &Cluster, database: &str) {
    let record = cluster.record_of(database);
    for recorded in &record {
        let targeted = recorded.shards.len() == 1;
        match recorded.verb {
            Verb::Write => assert!(targeted, "a write on several shards: {recorded:?}"),
            Verb::Read => {
                assert!(targeted || !is_of_one_device(&recorded.filter), "a query on several shards: {recorded:?}");
            }
            Verb::Shard => {}
        }
    }
    let sharded: BTreeSet<&str> = record.iter().filter(|at| at.sharded).map(|at| at.collection.as_str()).collect();
    for collection in sharded {
        let [one, other] = [0, 1].map(|shard| devices_on(cluster, shard, database, collection));
        let both: Vec<_> = one.intersection(&other).collect();
        assert!(both.is_empty(), "{collection}: devices on both shards: {both:?}");
        let is_split = !one.is_empty() && !other.is_empty();
        assert!(is_split || one.len() + other.len() < MANY_DEVICES, "{collection}: one shard has all devices");
    }
}

/// Whether a filter names one device, and no other.
fn is_of_one_device(filter: &Document) -> bool {
    devices_of(filter).is_some_and(|devices| devices.len() == 1)
}

/// The devices that a filter names; `None` if it matches others as well.
fn devices_of(filter: &Document) -> Option<BTreeSet<String>> {
    let field = ["deviceId", "meta.deviceId"].into_iter().find_map(|field| filter.get(field));
    match field {
        Some(Bson::String(device)) => Some(BTreeSet::from([device.clone()])),
        Some(Bson::Document(several)) => {
            several.get_array("$in").ok()?.iter().map(|device| device.as_str().map(str::to_owned)).collect()
        }
        _ => {
            let clauses = filter.get_array("$or").ok()?.iter();
            let named: Vec<_> = clauses.map(|clause| devices_of(clause.as_document()?)).collect::<Option<_>>()?;
            Some(named.into_iter().flatten().collect())
        }
    }
}

/// The devices of a collection, as the shard itself sees it.
fn devices_on(cluster: &Cluster, shard: usize, database: &str, collection: &str) -> BTreeSet<String> {
    let distinct = mongod::blocking(async {
        let client = Client::with_uri_str(cluster.shard_uri(shard)).await.unwrap();
        let group = doc! { "$group": { "_id": { "$ifNull": ["$meta.deviceId", "$deviceId"] } } };
        let command = doc! { "aggregate": collection, "pipeline": [group], "cursor": { "batchSize": 10_000 } };
        client.database(database).run_command(command).await.unwrap()
    });
    let found = distinct.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    found.iter().map(|row| row.as_document().unwrap().get_str("_id").unwrap().to_owned()).collect()
}

/// Writes a new reading, a resent one and a late one of each of many devices, and runs every query of one
/// device.
pub(in super::super) async fn each_device_has_its_shard(scratch: &Scratch, store: &dyn Store) {
    let cluster = scratch.cluster.unwrap();
    let devices = devices();
    for offsets in [[10, 20], [10, 20], [5, 30]] {
        let writes: Vec<_> = devices.iter().map(|device| write(device, HOUR, offsets)).collect();
        for outcome in store.write(&writes).await {
            outcome.unwrap();
        }
    }
    let buckets: Vec<_> = devices.iter().map(|device| (Arc::clone(device), HOUR)).collect();
    for outcome in store.rollups().unwrap().roll_up(&buckets).await {
        outcome.unwrap();
    }
    let before = cluster.record_of(&scratch.name).len();
    let hours = Hour(HOUR.0 - 2)..Hour(HOUR.0 + 2);
    for device in &devices {
        let stats = store
            .hour_stats(std::slice::from_ref(device), hours.clone(), &SeriesFilter::ALL, StatsNeeds::All)
            .await
            .unwrap();
        assert_eq!(stats[0][0].stats[0].1.count, 4);
        let contents = store.contents(device, hours.clone()).await.unwrap();
        assert_eq!(contents[0].1.samples().len(), 4);
        assert_eq!(store.last_hour(device).await.unwrap(), Some(HOUR));
    }
    let asked = cluster.record_of(&scratch.name).split_off(before);
    assert!(asked.len() >= 3 * devices.len());
    assert!(asked.iter().all(|asked| asked.shards.len() == 1 && asked.sharded));
    let used: BTreeSet<usize> = asked.iter().flat_map(|asked| asked.shards.clone()).collect();
    assert_eq!(used.len(), SHARDS);

    let several = store.hour_stats(&devices, hours.clone(), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap();
    assert!(several.iter().all(|of| of[0].stats[0].1.count == 4), "of devices of both shards");
    let listed = store.devices("", None, 1_000).await.unwrap().devices;
    assert!(listed.iter().map(|summary| &summary.device).eq(&devices), "in order, over both shards");
    let rollups = store.rollups().unwrap();
    assert_eq!(rollups.next_hour(Hour(0)).await.unwrap(), Some(HOUR));
    assert_eq!(roll_up_hours(store, Day::of(HOUR).hours()).await.unwrap(), 0, "all of it is done");
    assert_eq!(sharded(&cluster.record_of(&scratch.name)).len(), 3, "readings, rollups, devices");
}

/// First an instance writes that may not shard collections, then one that may.
pub(in super::super) async fn what_was_not_sharded_is_split<S: Store>(
    scratch: &Scratch,
    open: impl AsyncFn(MongodbOptions) -> S,
) {
    let cluster = scratch.cluster.unwrap();
    let forbidding = cluster.start_mongos(Sharding::Forbidden);
    let before = open(MongodbOptions { uri: uri_of([&forbidding]).parse().unwrap(), ..scratch.options() }).await;
    let devices = devices();
    let writes: Vec<_> = devices.iter().map(|device| write(device, HOUR, [1, 2])).collect();
    for outcome in before.write(&writes).await {
        assert_eq!(outcome.unwrap().stored, 2);
    }
    assert!(cluster.record_of(&scratch.name).iter().all(|recorded| !recorded.sharded && recorded.shards == [0]));

    let instances = [open(scratch.options()).await, open(scratch.options()).await];
    let later: Vec<_> = devices.iter().map(|device| write(device, HOUR, [2, 3])).collect();
    let (one, other) = tokio::join!(instances[0].write(&later[..20]), instances[1].write(&later[20..]));
    for outcome in one.into_iter().chain(other) {
        assert_eq!(outcome.unwrap().stored, 1);
    }
    for device in &devices {
        let contents = before.contents(device, HOUR..Hour(HOUR.0 + 1)).await.unwrap();
        assert_eq!(contents[0].1.samples().len(), 3, "{device}");
    }
    let keys = sharded(&cluster.record_of(&scratch.name));
    assert!(keys.len() == 6 && keys.iter().all(|key| key.values().eq([&Bson::from("hashed")])), "{keys:?}");
}

/// The keys of all `shardCollection`s.
fn sharded(record: &[Recorded]) -> Vec<Document> {
    record.iter().filter(|at| at.verb == Verb::Shard).map(|at| at.filter.clone()).collect()
}

/// The devices, in bytewise order.
fn devices() -> Vec<Arc<str>> {
    (10..10 + MANY_DEVICES).map(|nth| format!("device-{nth}").into()).collect()
}

fn write(device: &Arc<str>, hour: Hour, offsets: [u32; 2]) -> Arc<BucketWrite> {
    let samples = offsets.map(|offset| (Sample { value: f64::from(offset), offset, metric: 0 }, true));
    BucketWrite::new(Arc::clone(device), hour, None, vec!["lux".into()], samples).into()
}
