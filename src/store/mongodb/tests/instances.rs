//! The notes of instances that share a database.

use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};

use super::Scratch;
use crate::model::{BucketWrite, Hour, Sample};
use crate::store::mongodb::BucketStore;
use crate::store::{Announced, Instances, Joined};

const VALID: Duration = Duration::from_secs(6);

async fn stores() -> (Scratch, BucketStore, BucketStore) {
    let scratch = Scratch::on_a_sharded_cluster().await;
    let one = BucketStore::connect(scratch.options()).await.unwrap();
    let other = BucketStore::connect(scratch.options()).await.unwrap();
    (scratch, one, other)
}

async fn announced(store: &BucketStore, instance: &str) -> Vec<Announced> {
    store.look(instance).await.unwrap().deletions
}

#[tokio::test]
async fn instances_see_each_other_beat_until_they_leave() {
    let (scratch, one, other) = stores().await;
    assert!(one.beat("a", VALID).await.unwrap() && other.beat("b", VALID).await.unwrap());
    assert!(!one.beat("a", VALID).await.unwrap(), "it is known");
    let mut seen = other.look("b").await.unwrap().instances;
    seen.sort_by(|one, other| one.id.cmp(&other.id));
    let lease = VALID + scratch.options().timeout;
    let seen: Vec<_> = seen.iter().map(|seen| (&*seen.id, seen.beats, seen.lease > lease)).collect();
    assert_eq!(seen, [("a", 2, true), ("b", 1, true)]);
    one.leave("a").await.unwrap();
    assert_eq!(other.look("b").await.unwrap().instances.len(), 1);
    let indexes = scratch.all(doc! { "listIndexes": "buckets_instances" }).await;
    let expiry = indexes.iter().find_map(|index| index.get("expireAfterSeconds"));
    assert_eq!(expiry.and_then(super::super::decode::server_integer), Some(30 * 86_400), "{indexes:?}");
}

#[tokio::test]
async fn no_instance_joins_a_closed_deletion_and_none_is_closed_behind_an_instance_that_joins() {
    let (_scratch, one, other) = stores().await;
    assert_eq!(other.join("1", "b").await.unwrap(), Joined::Unknown);
    one.announce("1", "a", "the words").await.unwrap();
    one.announce("1", "a", "other words").await.unwrap(); // as after a crash
    let before = announced(&other, "b").await.remove(0);
    let expected = Announced {
        id: "1".into(),
        from: "a".into(),
        record: "the words".into(),
        joined: Vec::new(),
        executed: Vec::new(),
        is_closed: false,
    };
    assert_eq!(before, expected);
    assert_eq!(other.join("1", "b").await.unwrap(), Joined::Yes);
    assert!(!one.close(&before).await.unwrap(), "another instance has joined it meanwhile");
    assert_eq!(other.join("1", "b").await.unwrap(), Joined::Yes, "again, as after a crash");
    for _ in 0..2 {
        other.note_executed("1", "b", 7).await.unwrap();
    }
    one.note_executed("1", "a", 2).await.unwrap();
    let now = announced(&other, "b").await.remove(0);
    assert_eq!((&now.joined, &now.executed), (&vec!["b".into()], &vec![("b".into(), 7), ("a".into(), 2)]));
    assert!(one.close(&now).await.unwrap() && !one.close(&now).await.unwrap());
    assert_eq!(other.join("1", "c").await.unwrap(), Joined::Closed);
}

#[tokio::test]
async fn a_closed_deletion_stays_noted_until_all_instances_have_executed_it() {
    let (scratch, one, other) = stores().await;
    one.announce("1", "a", "").await.unwrap();
    one.announce("2", "a", "").await.unwrap();
    one.note_executed("1", "a", 0).await.unwrap();
    let first = announced(&one, "a").await.into_iter().find(|announced| announced.id == "1").unwrap();
    assert!(one.close(&first).await.unwrap());
    one.remove_closed(&["a", "b"]).await.unwrap();
    let of = |found: Vec<Announced>| found.into_iter().map(|announced| announced.id).collect::<Vec<_>>();
    assert_eq!(of(announced(&one, "a").await), ["2"], "what is executed and closed concerns it no more");
    assert_eq!(of(announced(&other, "b").await), ["1", "2"]);
    other.pass_closed("b", Duration::from_secs(3_600)).await.unwrap();
    assert_eq!(of(announced(&other, "b").await), ["1", "2"], "it was announced since then");
    other.pass_closed("b", Duration::ZERO).await.unwrap();
    assert_eq!(of(announced(&other, "b").await), ["2"]);
    one.remove_closed(&["a", "b"]).await.unwrap();
    let left = scratch.all(doc! { "find": "buckets_instances" }).await;
    assert_eq!(left.iter().map(|left| left.get_str("_id").unwrap()).collect::<Vec<_>>(), ["deletion/2"]);
}

#[tokio::test]
async fn metadata_that_comes_back_at_one_instance_replaces_that_of_another() {
    use crate::store::Store; // only here: both traits have a method `close`

    let (_scratch, one, other) = stores().await;
    one.beat("a", VALID).await.unwrap();
    other.beat("b", VALID).await.unwrap();
    one.look("a").await.unwrap();
    let [first, second] = [r#"{"floor":1}"#, r#"{"floor":2}"#];
    // In a year to come, because an instance writes the metadata of each hour of its first day anyway.
    for (device, hours) in [("newer-hours", [800_000, 800_001, 800_002]), ("same-hour", [800_000; 3])] {
        for (hour, (store, metadata)) in hours.into_iter().zip([(&one, first), (&other, second), (&one, first)]) {
            let samples = [(Sample { value: 1.0, offset: 7, metric: 0 }, true)];
            let write = BucketWrite::new(device.into(), Hour(hour), Some(metadata.into()), vec!["m".into()], samples);
            store.write(&[Arc::new(write)]).await.remove(0).unwrap();
        }
        let found = other.device(device).await.unwrap().unwrap().metadata.unwrap();
        assert_eq!((found.hour, &*found.text), (Hour(hours[2]), first), "{device}");
    }
}

/// The notes of the golden file, in the order of their IDs.
fn golden() -> Vec<Document> {
    let lines = include_str!("../../../../tests/golden/mongodb-1-instances.ndjson").lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn the_notes_of_the_golden_file_are_read_and_written() {
    let (scratch, one, other) = stores().await;
    one.beat("a", VALID).await.unwrap();
    one.announce("1", "a", "{\"id\":\"1\"}").await.unwrap();
    other.join("1", "b").await.unwrap();
    other.note_executed("1", "b", 7).await.unwrap();
    let mut written = scratch.all(doc! { "find": "buckets_instances", "sort": { "_id": 1 } }).await;
    for note in &mut written {
        assert!(matches!(note.remove("seenAt"), Some(Bson::DateTime(_))), "{note}");
    }
    let as_json = |notes: &[Document]| notes.iter().map(|note| serde_json::json!(note)).collect::<Vec<_>>();
    assert_eq!(as_json(&written), as_json(&golden()));

    let (scratch, one, _other) = stores().await;
    let insert = async |note: Document| {
        let mut note = note;
        note.insert("seenAt", DateTime::now());
        scratch.run(doc! { "insert": "buckets_instances", "documents": [note] }).await;
    };
    for note in golden() {
        insert(note).await;
    }
    let notes = one.look("a").await.unwrap();
    assert_eq!(notes.instances.iter().map(|seen| &*seen.id).collect::<Vec<_>>(), ["a"]);
    assert_eq!(notes.deletions[0].executed, [("b".to_owned(), 7)]);

    insert(doc! { "_id": "instance/newer", "schemaVersion": 2, "kind": "instance" }).await;
    let refused = one.look("a").await.unwrap_err().to_string();
    assert!(refused.contains("schemaVersion is 2") && refused.contains("version 1 only"), "{refused}");
}
