//! Deletions, and commands that reach the server after them.

use std::collections::BTreeSet;
use std::ops::Range;

use super::*;
use crate::config::BucketLayout;
use crate::model::Deletion;
use crate::store::mongodb::bucket::capacity::Capacity;
use crate::store::mongodb::bucket::fast::{append, insert, job_of};
use crate::store::mongodb::bucket::tests::faults::command_of;
use crate::store::mongodb::statements::Verb;
use crate::store::{Deleted, Deletions, Rollups};

/// Parts of a few readings, so that most hours have several.
mod readable {
    use super::super::{Scratch, Store};
    use crate::store::scenarios::store_scenarios;

    async fn open() -> (Scratch, impl Store, impl Store) {
        super::super::two_instances(Scratch::on_a_sharded_cluster().await).await
    }

    store_scenarios!(@deleting open);
}

mod packed {
    use super::super::{Scratch, Store};
    use super::{BucketLayout, BucketStore, MongodbOptions};
    use crate::store::scenarios::store_scenarios;

    async fn open() -> (Scratch, impl Store, impl Store) {
        let scratch = Scratch::on_one_member().await;
        let options = || MongodbOptions { layout: BucketLayout::Packed, validate: true, ..scratch.options() };
        let one = BucketStore::connect(options()).await.unwrap();
        let other = BucketStore::connect(options()).await.unwrap();
        (scratch, one, other)
    }

    store_scenarios!(@deleting open);
}

async fn delete(store: &BucketStore, range_ms: Option<Range<i64>>, unanswered: &[Hour]) -> Deleted {
    let deletion = Deletion { device: "d".into(), range_ms, series: SeriesFilter::ALL };
    store.delete(&deletion, &unanswered.iter().copied().collect::<BTreeSet<_>>()).await.unwrap()
}

#[tokio::test]
async fn an_emptied_document_keeps_its_id_and_a_higher_rev() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    let metadata: Arc<str> = r#"{"floor":2}"#.into();
    let mut write = (*write_at("d", 5..9)).clone();
    write.metadata = Some(metadata);
    write_one(&store, &write.into()).await.unwrap();
    let before = scratch.buckets().await.remove(0);
    assert_eq!(delete(&store, None, &[]).await.readings, 4);
    let start = bson::DateTime::from_millis(HOUR.start_ms());
    let emptied = doc! {
        "_id": "d/2026-04-20T14", "deviceId": "d", "bucket": start, "part": 0, "schemaVersion": 1, "rev": 2_i64,
        "createdAt": before.get_datetime("createdAt").unwrap(), "readingCount": 0_i64, "bytes": 0_i64,
        "firstTs": start, "lastTs": start, "stats": {}, "readings": [], "full": true, "deletedFrom": true,
    };
    let sorted = |document: &Document| document.clone().into_iter().collect::<std::collections::BTreeMap<_, _>>();
    assert_eq!(sorted(&scratch.buckets().await[0]), sorted(&emptied));
    write_one(&store, &write_at("d", 0..3)).await.unwrap();
    assert_eq!(scratch.buckets().await.len(), 2, "new readings get a new part");
    expect_instants(&store, "d", 0..3).await;
    delete(&store, Some(HOUR.instant_ms(1)..HOUR.instant_ms(3)), &[]).await;
    expect_instants(&store, "d", 0..1).await;
}

/// Each command of a process that was killed waits in the sockets of the server, and is executed in the end.
#[tokio::test]
async fn a_command_that_lands_after_the_deletion_does_nothing() {
    for layout in [BucketLayout::Readable, BucketLayout::Packed] {
        for stored in [0..0, 0..10] {
            let scratch = Scratch::new().await;
            let store = BucketStore::connect(MongodbOptions { layout, ..scratch.options() }).await.unwrap();
            store.ensure_schema().await.unwrap();
            let is_first = stored.is_empty();
            if !is_first {
                write_one(&store, &write_at("d", stored.clone())).await.unwrap();
            }
            let write = write_at("d", 10..20);
            let mut job = job_of(0, &write).unwrap();
            let late = if layout == BucketLayout::Packed || is_first {
                job.part = i32::from(!is_first);
                let encode = |statement: &mut _, job: &_| insert(statement, job, layout);
                command_of(&store, Verb::Insert, &job, encode)
            } else {
                let encode = |statement: &mut _, job: &_| append(statement, job, Capacity::new(1_000, 1 << 20));
                command_of(&store, Verb::Update, &job, encode)
            };
            let of_late = Some(HOUR.instant_ms(10)..HOUR.instant_ms(20));
            assert_eq!(delete(&store, of_late, &[HOUR]).await.readings, 0);
            let reply = store.commands.send(late).await.unwrap();
            assert!(reply.errors[0].is_duplicate_key(), "{layout:?}, {stored:?}: {reply:?}");
            write_one(&store, &write_at("d", 30..40)).await.unwrap();
            expect_instants(&store, "d", stored.chain(30..40)).await;
        }
    }
}

/// A write of two readings of the metrics `a` and `b`.
fn write_of_two(device: &str, hour: Hour) -> Arc<BucketWrite> {
    let samples = [(1, 0), (1, 1), (2, 0), (2, 1)];
    let samples = samples.map(|(offset, metric)| (Sample { value: 1.0, offset, metric }, metric == 0));
    BucketWrite::new(device.into(), hour, None, vec!["a".into(), "b".into()], samples).into()
}

/// One hour has no document any more, and the last one has no rollup.
#[tokio::test]
async fn a_damaged_document_keeps_only_its_own_hour_from_a_deletion() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    let hour = |nth: i32| Hour(HOUR.0 + nth);
    let mut writes: Vec<_> = (0..20).map(|nth| write_of_two("d", hour(nth))).collect();
    writes.push(write_of_two("e", HOUR));
    for outcome in store.write(&writes).await {
        outcome.unwrap();
    }
    let rolled_up: Vec<(Arc<str>, Hour)> = (0..19).map(|nth| ("d".into(), hour(nth))).collect();
    for outcome in store.roll_up(&rolled_up).await {
        outcome.unwrap();
    }
    let expire = doc! { "q": { "_id": "d/2026-04-20T14" }, "limit": 1 };
    scratch.run(doc! { "delete": "buckets", "deletes": [expire] }).await;
    let damage = |id: &str, how: Document| doc! { "q": { "_id": id }, "u": { "$set": how } };
    let damages = [
        damage("d/2026-04-20T16", doc! { "readings.0": "broken" }),
        damage("d/2026-04-20T17", doc! { "schemaVersion": 2 }),
        damage("e/2026-04-20T14", doc! { "schemaVersion": 2 }),
    ];
    scratch.run(doc! { "update": "buckets", "updates": damages.to_vec() }).await;

    let (a, none) = (SeriesFilter::new(["a"], []).unwrap(), BTreeSet::new());
    let of_a = |device: &str| Deletion { device: device.into(), range_ms: None, series: a.clone() };
    for readings in [34, 0] {
        let deleted = store.delete(&of_a("d"), &none).await.unwrap();
        assert_eq!((deleted.readings, deleted.hours), (readings, BTreeSet::from([hour(19)])));
        let kept: Vec<_> = deleted.kept.iter().map(|(hour, error)| (*hour, error.cause)).collect();
        assert_eq!(kept, [2, 3].map(|nth| (hour(nth), Cause::UnreadableDocument)));
        let stats = store.hour_stats(&["d".into()], HOUR..hour(20), &a, StatsNeeds::All).await.unwrap().remove(0);
        let with_a: Vec<Hour> = stats.iter().filter(|of| !of.stats.is_empty()).map(|of| of.hour).collect();
        assert_eq!(with_a, [2, 3].map(hour));
        assert_eq!(store.device("d").await.unwrap().unwrap().series.len(), 2);
    }
    store.delete(&of_a("e"), &none).await.unwrap();
    assert!(store.device("e").await.unwrap().is_some(), "people may repair its document");
    for device in ["d", "e"] {
        let deleted = store.delete(&Deletion::of_device(device.into()), &none).await.unwrap();
        assert_eq!((deleted.kept.len(), store.device(device).await.unwrap()), (0, None));
    }
}
