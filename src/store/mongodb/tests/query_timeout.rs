//! Queries carry their time limit to the server, which does not notice when the client stops waiting. The
//! derivation of rollups has none: it reads days of many devices.

use std::sync::Arc;

use bson::doc;

use super::Scratch;
use super::mongod::Mongod;
use crate::config::Timeseries;
use crate::model::{BucketWrite, Hour, Sample, SeriesFilter};
use crate::store::mongodb::layout::Derivation;
use crate::store::mongodb::{BucketStore, TimeseriesStore};
use crate::store::{Cause, ReadingsQuery, StatsNeeds, Store, StoreError};

const HOUR: Hour = Hour(493_526);

/// Each query of a store, and its outcome.
async fn ask_everything(store: &dyn Store) -> Vec<(&'static str, Result<(), StoreError>)> {
    let hours = HOUR..Hour(HOUR.0 + 1);
    let devices = ["d".into()];
    vec![
        ("readings", store.readings(&ReadingsQuery::all("d", &hours)).await.map(drop)),
        ("latest", store.latest("d", HOUR).await.map(drop)),
        ("last_hour", store.last_hour("d").await.map(drop)),
        ("last_hour_with", store.last_hour_with("d", &["lux".into()].into(), hours.clone()).await.map(drop)),
        ("hour_stats", store.hour_stats(&devices, hours, &SeriesFilter::ALL, StatsNeeds::All).await.map(drop)),
        ("devices", store.devices("", None, 10).await.map(drop)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_itself_ends_each_query_that_takes_too_long_and_no_derivation() {
    let mongod = Mongod::start();
    let scratch = Scratch::at(mongod.uri()).await;
    let timeseries = Timeseries::default();
    let bucket = BucketStore::connect(scratch.options()).await.unwrap();
    let timeseries = TimeseriesStore::connect(scratch.options(), timeseries).await.unwrap();
    let admin = scratch.client.database("admin");
    // Ends every operation that has a time limit, and no other.
    let fail = |mode| doc! { "configureFailPoint": "maxTimeAlwaysTimeOut", "mode": mode };
    for store in [&bucket as &dyn Store, &timeseries] {
        let sample = Sample { value: 1.0, offset: 5, metric: 0 };
        let write = BucketWrite::new("d".into(), HOUR, None, vec!["lux".into()], [(sample, true)]);
        store.write(&[write.into()]).await.remove(0).unwrap();
        admin.run_command(fail("alwaysOn")).await.unwrap();
        for (query, answer) in ask_everything(store).await {
            let error = answer.expect_err(query);
            assert_eq!(error.cause, Cause::Timeout, "{} {query}: {error}", store.name());
        }
        admin.run_command(fail("off")).await.unwrap();
        for (query, answer) in ask_everything(store).await {
            answer.unwrap_or_else(|error| panic!("{} {query}: {error}", store.name()));
        }
    }
    admin.run_command(fail("alwaysOn")).await.unwrap();
    let hour = [(Arc::<str>::from("d"), HOUR)];
    let derived = [bucket.layout.derive(&hour).await, timeseries.layout.derive(&hour).await];
    admin.run_command(fail("off")).await.unwrap();
    assert!(derived.iter().all(|rollups| rollups.as_ref().is_ok_and(|rollups| rollups.len() == 1)), "{derived:?}");
}
