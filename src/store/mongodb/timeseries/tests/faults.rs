//! Faults between tidegauge and the server, injected by the server's own fail points.

use super::*;
use crate::store::mongodb::bucket::tests::faults::Fault;
use crate::store::scenarios::in_the_end;

/// A store whose application name is that of the database, so that only its commands fail.
async fn faulty_store(scratch: &Scratch, timeout: Duration) -> TimeseriesStore {
    let separator = if scratch.uri.contains('?') { '&' } else { '?' };
    let uri = format!("{}{separator}appName={}", scratch.uri, scratch.name);
    self::store(scratch).await.ensure_schema().await.unwrap(); // with time enough, however short `timeout` is
    let options = MongodbOptions { uri: uri.parse().unwrap(), timeout, ..scratch.options() };
    let store = TimeseriesStore::connect(options, config::Timeseries::default()).await.unwrap();
    in_the_end(async || store.ensure_schema().await).await;
    store
}

async fn a_fault_is_transient(how: Document, expected: Cause, applied: bool) {
    let scratch = Scratch::new().await;
    let store = faulty_store(&scratch, Duration::from_secs(10)).await;
    write_one(&store, &write_at("d", 0..5)).await.unwrap();
    let write = write_at("d", 5..15);
    let fault = Fault::inject(&scratch, "insert", doc! { "times": 1 }, how).await;
    let error = write_one(&store, &write).await.unwrap_err();
    fault.remove().await;
    assert_eq!(error.cause, expected);
    expect_instants(&scratch, 0..if applied { 15 } else { 5 }).await;
    let expected = if applied { (0, 10) } else { (10, 0) };
    let written = write_one(&store, &write).await.unwrap();
    assert_eq!((written.stored, written.duplicate), expected);
    expect_instants(&scratch, 0..15).await;
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
async fn a_write_concern_error_is_transient_and_a_resend_stores_once() {
    let how = doc! { "writeConcernError": { "code": 91, "errmsg": "shutting down" } };
    a_fault_is_transient(how, Cause::WriteConcern, true).await;
}

/// The command hangs in the server before it does anything, and goes on long after it was given up.
#[tokio::test]
async fn an_insert_that_hangs_is_fenced_and_stores_nothing_later() {
    let scratch = Scratch::new().await;
    write_one(&store(&scratch).await, &write_at("d", 0..5)).await.unwrap();
    let store = faulty_store(&scratch, Duration::from_millis(500)).await;
    let write = write_at("d", 5..15);
    let hang = doc! { "blockConnection": true, "blockTimeMS": 2_500 };
    let fault = Fault::inject(&scratch, "insert", doc! { "times": 1 }, hang).await;
    let outcome = write_one(&store, &write).await;
    assert!(matches!(outcome, Err(StoreError { cause: Cause::Timeout, .. })), "{outcome:?}");
    let written = in_the_end(async || {
        let outcome = write_one(&store, &write).await;
        assert!(outcome.as_ref().err().is_none_or(|error| !error.is_permanent()), "{outcome:?}");
        outcome
    })
    .await;
    assert_eq!(written.stored + written.duplicate, 10);
    fault.remove().await; // waits until the one that hung has gone on
    expect_instants(&scratch, 0..15).await;
}

#[tokio::test]
async fn a_new_instance_stores_nothing_again() {
    let scratch = Scratch::new().await;
    let write = write_at("d", 0..10);
    assert_eq!(write_one(&store(&scratch).await, &write).await.unwrap(), Written { stored: 10, duplicate: 0 });
    let next = store(&scratch).await;
    assert_eq!(write_one(&next, &write).await.unwrap(), Written { stored: 0, duplicate: 10 });
    assert_eq!(write_one(&next, &write_at("d", 5..20)).await.unwrap(), Written { stored: 10, duplicate: 5 });
    expect_instants(&scratch, 0..20).await;
}

/// The server of the other election may lack them.
#[tokio::test]
async fn readings_that_were_found_before_another_election_are_not_durable() {
    let scratch = Scratch::new().await;
    let store = store(&scratch).await;
    write_one(&store, &write_at("d", 0..5)).await.unwrap();
    let sessions = &store.layout.sessions;
    let election = sessions.election().await.unwrap();
    assert!(election.is_some());
    sessions.wait_for_majority(election).await.unwrap();
    for other in [None, Some(bson::oid::ObjectId::new())] {
        assert_eq!(sessions.wait_for_majority(other).await.unwrap_err().cause, Cause::NotPrimary);
    }
}

#[tokio::test]
async fn a_write_larger_than_a_command_is_sent_in_several() {
    let scratch = Scratch::new().await;
    let store = store(&scratch).await;
    let write = write_at("d", 0..220_000);
    assert_eq!(write_one(&store, &write).await.unwrap(), Written { stored: 220_000, duplicate: 0 });
    let counted = scratch.all(doc! { "aggregate": "readings", "pipeline": [{ "$count": "n" }], "cursor": {} }).await;
    assert_eq!(counted[0].get_i32("n").unwrap(), 220_000);
}

#[tokio::test]
async fn a_measurement_that_the_server_refuses_fails_no_other_write() {
    let scratch = Scratch::new().await;
    let store = store(&scratch).await;
    let metrics = (0..2_000).map(|number| format!("{number}{}", "x".repeat(3_000)).as_str().into()).collect();
    let samples = (0..2_000).map(|metric| (Sample { value: 0.5, offset: 0, metric }, metric == 0));
    let large = BucketWrite::new("b".into(), HOUR, None, metrics, samples); // the server takes measurements up to 4 MiB
    let outcomes = store.write(&[write_at("a", 0..5), large.into(), write_at("c", 0..5)]).await;
    assert!(outcomes[1].as_ref().is_err_and(StoreError::is_permanent), "{:?}", outcomes[1]);
    for others in [&outcomes[0], &outcomes[2]] {
        let Written { stored, duplicate } = others.as_ref().unwrap(); // the command that was refused has stored a part
        assert_eq!(stored + duplicate, 5);
    }
    assert_eq!(measurements(&scratch).await.len(), 10);
}
