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
use crate::store::{Deleted, Deletions};

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
