//! Real servers for the tests of the layouts, and a database of its own for each test.

mod instances;
mod majority;
#[path = "../../../../tests/harness/mongod.rs"]
#[expect(dead_code, reason = "the integration tests kill and restart servers; those of the store do not")]
pub(super) mod mongod;
mod query_timeout;
pub(super) mod rebuilding;
pub(super) mod sharded;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bson::{Document, doc};
use mongodb::Client;

use self::mongod::Mongod;
use self::mongod::mongos::{Cluster, Mongos, Sharding, uri_of};
use self::mongod::replica_set::ReplicaSet;
use super::MongodbOptions;
use crate::config::{BlockCompressor, BucketLayout};
use crate::model::Hour;
use crate::store::Store;
use crate::store::scenarios::Expiry;

/// Runs the scenarios of a layout on every kind of deployment. `$open` opens two instances that share a
/// [`Scratch`].
///
/// All run on one member and on a cluster. To a client, three members differ by what a write waits for, and
/// by when another connection sees it: there, those scenarios run in which one call or instance follows
/// another.
macro_rules! on_every_deployment {
    ($open:ident $(, $variant:ident)?) => {
        $crate::store::mongodb::tests::on_every_deployment!(@all one_member, on_one_member, $open $(, $variant)?);
        $crate::store::mongodb::tests::on_every_deployment!(
            @all sharded_cluster, on_a_sharded_cluster, $open $(, $variant)?
        );
        mod three_members {
            $crate::store::mongodb::tests::on_every_deployment!(@open on_three_members, $open);
            $crate::store::scenarios::store_scenarios!(@one open, writing:
                a_write_that_is_resent_whole_changes_nothing,
                a_write_that_is_resent_in_part_adds_only_what_is_new,
                late_readings_are_stored_before_and_between,
                many_small_writes_of_one_bucket_add_up,
                one_call_writes_many_buckets_and_answers_in_their_order,
            );
            $crate::store::scenarios::store_scenarios!(@one open, reading:
                pages_of_any_size_give_each_reading_once,
            );
            $crate::store::scenarios::store_scenarios!(@two open, concurrent:
                two_writers_of_different_readings_lose_none,
                two_writers_of_different_metrics_lose_none,
            );
            $crate::store::scenarios::store_scenarios!(@one open, devices:
                writes_in_any_order_leave_the_metadata_of_the_newest_hour,
            );
            $crate::store::scenarios::store_scenarios!(@two open, devices:
                two_writers_of_one_device_leave_one_entry,
            );
            $crate::store::mongodb::tests::on_every_deployment!(@rolling);
        }
        $crate::store::mongodb::tests::on_every_deployment!(@rebuilding member_rebuilding, on_one_member, $open);
        $crate::store::mongodb::tests::on_every_deployment!(@rebuilding shards_rebuilding, on_a_sharded_cluster, $open);
    };
    (@rebuilding $room:ident, $scratch:ident, $open:ident) => {
        mod $room {
            $crate::store::mongodb::tests::on_every_deployment!(@open $scratch, $open);

            #[tokio::test]
            async fn a_lost_device_index_is_rebuilt_from_what_is_stored() {
                let (scratch, store, other) = open().await;
                $crate::store::mongodb::tests::rebuilding::a_lost_index_is_rebuilt(&scratch, &store, &other).await;
            }

            #[tokio::test]
            async fn no_stored_device_is_missing_from_a_marked_device_index() {
                let (scratch, store, other) = open().await;
                $crate::store::mongodb::tests::rebuilding::no_device_is_missing_from_a_marked_index(
                    &scratch, &store, &other,
                )
                .await;
            }

            #[tokio::test]
            async fn rebuilds_of_the_device_index_beside_writers_lose_nothing() {
                let (scratch, store, other) = open().await;
                $crate::store::mongodb::tests::rebuilding::rebuilds_beside_writers_lose_nothing(
                    &scratch, &store, &other,
                )
                .await;
            }
        }
    };
    (@open $scratch:ident, $open:ident) => {
        use $crate::store::Store;
        use $crate::store::mongodb::tests::Scratch;

        async fn open() -> (Scratch, impl Store, impl Store) {
            super::$open(Scratch::$scratch().await).await
        }
    };
    (@all $room:ident, $scratch:ident, $open:ident $(, $variant:ident)?) => {
        mod $room {
            $crate::store::mongodb::tests::on_every_deployment!(@open $scratch, $open);
            $crate::store::scenarios::store_scenarios!(open $(, $variant)?);
            $crate::store::scenarios::store_scenarios!(@indexed open);
            $crate::store::mongodb::tests::on_every_deployment!(@rolling);
        }
    };
    (@rolling) => {
        $crate::store::scenarios::store_scenarios!(@two open, rolling:
            days_are_rolled_up_one_after_the_other,
            hours_soon_after_1970_are_rolled_up,
            late_hours_of_a_day_are_rolled_up_together,
            several_devices_have_the_stats_that_each_has_alone,
            hours_of_devices_with_alike_ids_are_counted_once,
            instances_agree_on_what_is_rolled_up,
        );
    };
}
pub(super) use on_every_deployment;

/// A database of its own for a test. It is dropped at the end; on a cluster, the shards of all commands are
/// checked before.
pub(super) struct Scratch {
    pub(super) uri: String,
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) cluster: Option<&'static Cluster>,
}

impl Scratch {
    /// A database on the replica set of one member, for tests that do not depend on the deployment.
    pub(super) async fn new() -> Self {
        Self::on_one_member().await
    }

    pub(super) async fn on_one_member() -> Self {
        Self::at(mongod::uri()).await
    }

    pub(super) async fn on_three_members() -> Self {
        static SHARED: OnceLock<ReplicaSet> = OnceLock::new();
        Self::at(SHARED.get_or_init(ReplicaSet::start).uri()).await
    }

    /// A database on a server that looks for what has expired every second.
    pub(super) async fn on_an_impatient_member() -> Self {
        static SHARED: OnceLock<Mongod> = OnceLock::new();
        Self::at(SHARED.get_or_init(|| Mongod::start_with(&["ttlMonitorSleepSecs=1"])).uri()).await
    }

    /// A database behind two mongoses of a cluster of two shards.
    pub(super) async fn on_a_sharded_cluster() -> Self {
        static SHARED: OnceLock<(Cluster, [Mongos; 2])> = OnceLock::new();
        let (cluster, mongoses) = SHARED.get_or_init(|| {
            let cluster = Cluster::start();
            let mongoses = [cluster.start_mongos(Sharding::Allowed), cluster.start_mongos(Sharding::Allowed)];
            (cluster, mongoses)
        });
        let mut scratch = Self::at(&uri_of(mongoses)).await;
        scratch.cluster = Some(cluster);
        scratch
    }

    async fn at(uri: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tidegauge_test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { client: Client::with_uri_str(uri).await.unwrap(), uri: uri.to_owned(), name, cluster: None }
    }

    pub(super) fn options(&self) -> MongodbOptions {
        MongodbOptions {
            uri: self.uri.parse().unwrap(),
            database: self.name.clone(),
            collection: "buckets".into(),
            rollups_collection: "rollups".into(),
            devices_collection: "devices".into(),
            timeout: Duration::from_secs(60), // tests of the timeout set their own
            query_timeout: Duration::from_secs(60),
            layout: BucketLayout::Readable,
            max_readings_per_document: 1000,
            max_document_bytes: 1 << 20,
            slow_writes: metrics::Counter::noop(),
            unreadable_readings: crate::store::UnreadableDocuments::default(),
            unreadable_rollups: crate::store::UnreadableDocuments::default(),
            unreadable_devices: crate::store::UnreadableDocuments::default(),
            retention: None,
            rollups_retention: None,
            block_compressor: BlockCompressor::Zstd,
            validate: false,
            max_connections: 10,
        }
    }

    pub(super) async fn run(&self, command: Document) -> Document {
        self.client.database(&self.name).run_command(command).await.unwrap()
    }

    /// The documents that a command returns a cursor for.
    pub(super) async fn all(&self, command: Document) -> Vec<Document> {
        let reply = self.run(command).await;
        let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        batch.iter().map(|document| document.as_document().unwrap().clone()).collect()
    }
}

/// A counter, and what it counts.
pub(super) fn counter() -> (metrics::Counter, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    (metrics::Counter::from_arc(Arc::clone(&count)), count)
}

impl Expiry for Scratch {
    async fn expire_readings(&self, store: &dyn Store, device: &str) {
        let rollups = store.rollups().unwrap();
        let mut next = Hour(i32::MIN);
        while let Some(hour) = rollups.next_hour(next).await.unwrap() {
            rollups.roll_up(&[(device.into(), hour)]).await.remove(0).unwrap();
            next = Hour(hour.0 + 1);
        }
        let (collection, field) = match store.name() {
            "mongodb" => ("buckets", "deviceId"),
            _ => ("readings", "meta.deviceId"),
        };
        let delete = doc! { "q": { field: device }, "limit": 0 };
        let reply = self.run(doc! { "delete": collection, "deletes": [delete] }).await;
        assert!(reply.get_i32("n").is_ok_and(|n| n > 0), "{reply}");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster
            && !std::thread::panicking()
        {
            sharded::check(cluster, &self.name);
        }
        let (uri, name) = (self.uri.clone(), self.name.clone());
        let dropped = mongod::blocking(async { Client::with_uri_str(&uri).await?.database(&name).drop().await });
        assert!(dropped.is_ok() || std::thread::panicking(), "the database could not be dropped: {dropped:?}");
    }
}
