//! Faults between tidegauge and the server, injected by the server's own fail points.

use std::collections::BTreeSet;

use bson::{Bson, RawDocumentBuf};
use tokio::sync::{Mutex, MutexGuard};

use super::schema::compressor;
use super::*;
use crate::config::{BlockCompressor, BucketLayout, MongodbUri};
use crate::model::{Day, Deletion};
use crate::store::mongodb::bucket::capacity::Capacity;
use crate::store::mongodb::bucket::fast::{Job, append, job_of};
use crate::store::mongodb::encode::Encoder;
use crate::store::mongodb::statements::{Verb, write_command};
use crate::store::scenarios::in_the_end;
use crate::store::{Deletions, Rollups};

/// A server has one `failCommand`, so only one test at a time may use it.
static FAIL_POINT: Mutex<()> = Mutex::const_new(());

/// Makes the commands of one application fail.
pub(in crate::store::mongodb) struct Fault<'a> {
    scratch: &'a Scratch,
    _alone: MutexGuard<'static, ()>,
}

impl<'a> Fault<'a> {
    /// Makes one kind of command of the scratch's faulty store fail. `how` is the fault, `mode` its
    /// frequency.
    pub(in crate::store::mongodb) async fn inject(
        scratch: &'a Scratch,
        command: &str,
        mode: Document,
        how: Document,
    ) -> Self {
        let fault = Self { scratch, _alone: FAIL_POINT.lock().await };
        let mut data = doc! { "failCommands": [command], "appName": &scratch.name };
        data.extend(how);
        fault.configure(mode.into(), data).await;
        fault
    }

    async fn configure(&self, mode: Bson, data: Document) {
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        self.scratch.client.database("admin").run_command(command).await.unwrap();
    }

    pub(in crate::store::mongodb) async fn remove(self) {
        self.configure("off".into(), doc! {}).await;
    }
}

/// A store whose application name is that of the database, so that only its commands fail.
async fn faulty_store(scratch: &Scratch) -> BucketStore {
    faulty_store_with(scratch, scratch.options()).await
}

async fn faulty_store_with(scratch: &Scratch, options: MongodbOptions) -> BucketStore {
    let uri = faulty_uri(scratch);
    scratch.store().await.ensure_schema().await.unwrap(); // with time enough, however short the timeout of `options` is
    let store = BucketStore::connect(MongodbOptions { uri, ..options }).await.unwrap();
    in_the_end(async || store.ensure_schema().await).await;
    store
}

fn faulty_uri(scratch: &Scratch) -> MongodbUri {
    let separator = if scratch.uri.contains('?') { '&' } else { '?' };
    format!("{}{separator}appName={}", scratch.uri, scratch.name).parse().unwrap()
}

/// A fault of the commands on one collection.
fn on(collection: &str, scratch: &Scratch, how: &Document) -> Document {
    let mut how = how.clone();
    how.insert("namespace", format!("{}.{collection}", scratch.name));
    how
}

async fn a_fault_is_transient(how: Document, expected: Cause, applied: bool) {
    let scratch = Scratch::new().await;
    let store = faulty_store(&scratch).await;
    for (command, readings) in [("insert", 0..10), ("update", 10..20)] {
        let writes = [write_at("a", readings.clone()), write_at("b", readings.clone())];
        let fault = Fault::inject(&scratch, command, doc! { "times": 1 }, on("buckets", &scratch, &how)).await;
        for outcome in store.write(&writes).await {
            let error = outcome.unwrap_err();
            assert_eq!(error.cause, expected);
        }
        fault.remove().await;
        let there = if applied { readings.end } else { readings.start };
        for device in if there == 0 { [].as_slice() } else { &["a", "b"] } {
            expect_instants(&store, device, 0..there).await;
        }
        assert_eq!(scratch.buckets().await.is_empty(), there == 0, "{command}");
        for outcome in store.write(&writes).await {
            let written = outcome.unwrap();
            assert_eq!((written.stored, written.duplicate), if applied { (0, 10) } else { (10, 0) }, "{command}");
        }
        for device in ["a", "b"] {
            expect_instants(&store, device, 0..readings.end).await;
        }
    }
}

#[tokio::test]
async fn no_bucket_is_written_before_its_device_is_in_the_index() {
    for (how, expected) in [
        (doc! { "closeConnection": true }, Cause::Network),
        (doc! { "errorCode": 189 }, Cause::NotPrimary),
        (doc! { "writeConcernError": { "code": 64, "errmsg": "waiting timed out" } }, Cause::WriteConcern),
    ] {
        let scratch = Scratch::new().await;
        let store = faulty_store(&scratch).await;
        write_one(&store, &write_at("known", 0..10)).await.unwrap();
        let writes = [write_at("new", 0..10), write_at("known", 10..20)];
        let fault = Fault::inject(&scratch, "insert", doc! { "times": 1 }, on("devices", &scratch, &how)).await;
        let outcomes = store.write(&writes).await;
        fault.remove().await;
        assert_eq!(outcomes[0].as_ref().unwrap_err().cause, expected);
        assert_eq!(outcomes[1].as_ref().unwrap().stored, 10, "its device has not changed");
        assert!(store.contents("new", HOUR..Hour(HOUR.0 + 1)).await.unwrap().is_empty());
        assert_eq!(write_one(&store, &writes[0]).await.unwrap(), Written { stored: 10, duplicate: 0 });
        let device = store.device("new").await.unwrap().unwrap();
        assert_eq!((device.first_ts_ms, device.last_ts_ms), (HOUR.instant_ms(0), HOUR.instant_ms(9)));
    }
}

/// A write that is in progress has the lock for which a deletion waits.
#[tokio::test]
async fn a_deletion_holds_up_no_write_while_the_device_index_does_not_answer() {
    let scratch = Scratch::new().await;
    let store = faulty_store(&scratch).await;
    write_one(&store, &write_at("d", 0..10)).await.unwrap();
    let (deletion, none) = (Deletion::of_device("d".into()), BTreeSet::new());
    let how = on("devices", &scratch, &doc! { "errorCode": 11602 });
    let fault = Fault::inject(&scratch, "find", doc! { "times": 1_000 }, how).await;
    let writing = store.changes.read().await;
    let deleted = tokio::time::timeout(Duration::from_secs(60), store.delete(&deletion, &none)).await;
    drop(writing);
    fault.remove().await;
    assert_eq!(deleted.expect("it asks the index first").unwrap_err().cause, Cause::NotPrimary);
    store.delete(&deletion, &none).await.unwrap();
    assert!(store.device("d").await.unwrap().is_none());
}

#[tokio::test]
async fn a_state_change_is_transient_and_a_resend_stores_once() {
    a_fault_is_transient(doc! { "errorCode": 11602 }, Cause::NotPrimary, false).await;
}

#[tokio::test]
async fn a_lost_connection_is_transient_and_a_resend_stores_once() {
    a_fault_is_transient(doc! { "closeConnection": true }, Cause::Network, false).await;
}

#[tokio::test]
async fn a_command_that_hangs_does_nothing_after_a_resend() {
    let scratch = Scratch::new().await;
    let options = MongodbOptions { timeout: Duration::from_millis(500), ..scratch.options() };
    let store = faulty_store_with(&scratch, options).await;
    let patient = scratch.store().await;
    for (command, readings) in [("insert", 0..10), ("update", 10..20)] {
        let write = write_at("d", readings.clone());
        // so long that `patient` writes before it ends, also on a busy machine
        let hang = doc! { "blockConnection": true, "blockTimeMS": 4_000 };
        let fault = Fault::inject(&scratch, command, doc! { "times": 1 }, hang).await;
        let outcome = write_one(&store, &write).await;
        assert!(matches!(outcome, Err(StoreError { cause: Cause::Timeout, .. })), "{command}: {outcome:?}");
        assert_eq!(write_one(&patient, &write).await.unwrap(), Written { stored: 10, duplicate: 0 });
        fault.remove().await; // waits until the one that hung has gone on
        expect_instants(&patient, "d", 0..readings.end).await;
    }
}

#[tokio::test]
async fn a_write_concern_error_is_transient_and_a_resend_stores_once() {
    let how = doc! { "writeConcernError": { "code": 91, "errmsg": "shutting down" } };
    a_fault_is_transient(how, Cause::WriteConcern, true).await;
}

#[tokio::test]
async fn a_rewrite_whose_answer_is_an_error_is_safe_to_repeat() {
    for (how, expected, applied) in [
        (doc! { "closeConnection": true }, Cause::Network, false),
        (doc! { "errorCode": 189 }, Cause::NotPrimary, false),
        (doc! { "writeConcernError": { "code": 64, "errmsg": "waiting timed out" } }, Cause::WriteConcern, true),
    ] {
        let scratch = Scratch::new().await;
        let store = faulty_store(&scratch).await;
        write_one(&store, &write_at("d", 10..20)).await.unwrap();
        let write = write_at("d", 0..15);
        // the first update is of the device, with its earlier first reading; the second is the fast path,
        // which says 11000; the third is the rewrite
        let fault = Fault::inject(&scratch, "update", doc! { "skip": 2 }, how).await;
        let error = write_one(&store, &write).await.unwrap_err();
        assert_eq!(error.cause, expected);
        fault.remove().await;
        let (stored, duplicate) = if applied { (0, 15) } else { (10, 5) };
        assert_eq!(write_one(&store, &write).await.unwrap(), Written { stored, duplicate });
        expect_instants(&store, "d", 0..20).await;
    }
}

#[tokio::test]
async fn a_bucket_before_the_slow_path_fails_if_the_server_is_gone() {
    let scratch = Scratch::new().await;
    let options =
        MongodbOptions { max_readings_per_document: 1_000_000, max_document_bytes: 1 << 30, ..scratch.options() };
    let store = faulty_store_with(&scratch, options).await;
    for device in ["a", "b", "c"] {
        write_one(&store, &write_at(device, 0..1)).await.unwrap();
    }
    write_one(&store, &write_at("late", 10..20)).await.unwrap();
    // after the updates of the index and of the first three buckets; a large one needs its own command
    let writes = [write_at("late", 0..5), write_at("a", 1..50_000), write_at("b", 1..50_000), write_at("c", 1..50_000)];
    let fault = Fault::inject(&scratch, "update", doc! { "skip": 4 }, doc! { "closeConnection": true }).await;
    let outcomes = store.write(&writes).await;
    fault.remove().await;
    assert!(outcomes[1].is_ok() && outcomes[2].is_ok());
    for at in [0, 3] {
        assert!(matches!(outcomes[at], Err(StoreError { cause: Cause::Network, .. })), "{:?}", outcomes[at]);
    }
    assert_eq!(write_one(&store, &writes[0]).await.unwrap().stored, 5);
}

#[tokio::test]
async fn rolling_up_is_safe_to_repeat() {
    for (how, expected) in [
        (doc! { "closeConnection": true }, Cause::Network),
        (doc! { "errorCode": 189 }, Cause::NotPrimary),
        (doc! { "writeConcernError": { "code": 64, "errmsg": "waiting timed out" } }, Cause::WriteConcern),
    ] {
        let scratch = Scratch::new().await;
        let store = faulty_store(&scratch).await;
        write_one(&store, &write_at("d", 0..10)).await.unwrap();
        write_one(&store, &write_at("e", 0..10)).await.unwrap();
        let fault = Fault::inject(&scratch, "update", doc! { "times": 2 }, how.clone()).await;
        let by_bucket = store.roll_up(&[("d".into(), HOUR)]).await.remove(0);
        let whole = roll_up_hour(&store, HOUR).await;
        for error in [by_bucket.unwrap_err(), whole.unwrap_err()] {
            assert_eq!(error.cause, expected, "{error}");
        }
        fault.remove().await;
        let fault = Fault::inject(&scratch, "insert", doc! { "times": 1 }, how).await;
        assert_eq!(roll_up_hours(&store, Day::of(HOUR).hours()).await.unwrap_err().cause, expected);
        fault.remove().await;
        store.roll_up(&[("d".into(), HOUR)]).await.remove(0).unwrap();
        roll_up_hours(&store, Day::of(HOUR).hours()).await.unwrap();
        scratch.run(doc! { "drop": "buckets" }).await;
        for device in ["d", "e"] {
            let range = HOUR..Hour(HOUR.0 + 1);
            let found =
                store.hour_stats(&[device.into()], range, &SeriesFilter::ALL, StatsNeeds::All).await.unwrap().remove(0);
            assert_eq!(found[0].stats, write_at(device, 0..10).contents.stats(HOUR));
        }
    }
}

/// The command with the one statement of a job.
pub(super) fn command_of<'w>(
    store: &BucketStore,
    verb: Verb<'_>,
    job: &Job<'w>,
    encode: impl Fn(&mut Encoder, &Job<'w>),
) -> RawDocumentBuf {
    let concern = |command: &mut Encoder| store.commands.write_concern(command);
    write_command(verb, "buckets", concern, std::slice::from_ref(job), encode).0
}

#[tokio::test]
async fn a_command_that_lands_twice_stores_once() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    store.ensure_schema().await.unwrap();
    let (first, second) = (write_at("d", 0..10), write_at("d", 10..20));
    let command = |write: &BucketWrite| -> RawDocumentBuf {
        let write = Arc::new(write.clone());
        let job = job_of(0, &write).unwrap();
        let encode = |statement: &mut _, job: &_| append(statement, job, Capacity::new(1_000, 1 << 20));
        command_of(&store, Verb::Update, &job, encode)
    };
    assert_eq!(store.commands.send(command(&first)).await.unwrap().errors, []);
    assert_eq!(store.commands.send(command(&second)).await.unwrap().errors, []);
    for late in [&first, &second] {
        let reply = store.commands.send(command(late)).await.unwrap();
        assert!(reply.errors[0].is_duplicate_key());
    }
    expect_instants(&store, "d", 0..20).await;
}

#[tokio::test]
async fn a_bucket_that_the_server_refuses_does_not_fail_the_others() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    store.ensure_schema().await.unwrap();
    scratch.run(doc! { "collMod": "buckets", "validator": { "deviceId": { "$ne": "b" } } }).await;
    let writes = ["a", "b", "c"].map(|device| write_at(device, 0..5));
    let outcomes = store.write(&writes).await;
    assert_eq!(outcomes[0].as_ref().unwrap().stored, 5);
    assert!(matches!(outcomes[1], Err(StoreError { cause: Cause::Validation, .. })), "{:?}", outcomes[1]);
    assert_eq!(outcomes[2].as_ref().unwrap().stored, 5);
}

#[tokio::test]
async fn a_bucket_too_large_for_a_command_does_not_fail_the_others() {
    let scratch = Scratch::new().await;
    let options =
        MongodbOptions { max_readings_per_document: 1_000_000, max_document_bytes: 1 << 30, ..scratch.options() };
    let store = BucketStore::connect(options).await.unwrap();
    let writes = [write_at("a", 0..5), write_at("b", 0..700_000), write_at("c", 0..5)];
    let outcomes = store.write(&writes).await;
    assert_eq!(outcomes[0].as_ref().unwrap().stored, 5);
    assert!(matches!(outcomes[1], Err(StoreError { cause: Cause::TooLarge, .. })), "{:?}", outcomes[1]);
    assert_eq!(outcomes[2].as_ref().unwrap().stored, 5);
}

#[tokio::test]
async fn a_write_to_an_unreadable_bucket_is_a_permanent_error() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    write_one(&store, &write_at("d", 0..5)).await.unwrap();
    let spoil = doc! { "q": {}, "u": { "$set": { "readings.0.lux": "high" } } };
    scratch.run(doc! { "update": "buckets", "updates": [spoil] }).await;
    let outcome = write_one(&store, &write_at("d", 0..3)).await;
    assert!(matches!(outcome, Err(StoreError { cause: Cause::UnreadableDocument, .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_server_that_refuses_the_compressor_creates_the_collection_without_it() {
    let scratch = Scratch::new().await;
    let fault = Fault::inject(&scratch, "create", doc! { "times": 1 }, doc! { "errorCode": 72 }).await;
    let store = BucketStore::connect(MongodbOptions { uri: faulty_uri(&scratch), ..scratch.options() }).await.unwrap();
    store.ensure_schema().await.unwrap();
    fault.remove().await;
    assert_eq!(compressor(&scratch, "buckets").await, "snappy", "the server's default");
    assert_eq!(compressor(&scratch, "rollups").await, "zstd");
}

#[tokio::test]
async fn a_store_opens_while_the_server_is_down_and_each_call_fails() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap(); // it keeps its port, and does not listen
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let free = socket.local_addr().unwrap();
    let options = MongodbOptions {
        uri: format!("mongodb://{free}").parse().unwrap(),
        database: "d".into(),
        collection: "buckets".into(),
        rollups_collection: "rollups".into(),
        devices_collection: "devices".into(),
        timeout: Duration::from_millis(200),
        query_timeout: Duration::from_millis(200),
        layout: BucketLayout::Readable,
        max_readings_per_document: 10,
        max_document_bytes: 1 << 20,
        slow_writes: metrics::Counter::noop(),
        unreadable_readings: crate::store::UnreadableDocuments::default(),
        unreadable_rollups: crate::store::UnreadableDocuments::default(),
        unreadable_devices: crate::store::UnreadableDocuments::default(),
        retention: None,
        rollups_retention: None,
        block_compressor: BlockCompressor::Zstd,
        validate: false,
        max_connections: 2,
    };
    let store = BucketStore::connect(options).await.unwrap();
    let said = in_the_end(async || {
        let said = store.ping().await.unwrap_err().to_string();
        if said.ends_with("no answer yet") { Err(said) } else { Ok(said) }
    })
    .await;
    assert_eq!(said, format!("{free}: Connection refused"));
    assert!(store.ensure_schema().await.is_err());
    assert!(store.last_hour("d").await.is_err());
    for outcome in store.write(&[write_at("a", 0..1), write_at("b", 0..1)]).await {
        let StoreError { cause, detail } = outcome.unwrap_err();
        assert_eq!(detail, format!("{free}: Connection refused"));
        assert!([Cause::ServerSelection, Cause::Timeout].contains(&cause), "{cause:?}");
    }
}
