//! Tests of the audit: it finds each corruption of a store and nothing else.

use std::sync::Arc;

use super::corrupt::{Corruption, corrupt};
use crate::faults::fault_test::FaultTest;
use crate::faults::history::Identity;
use crate::faults::store::{Store, on_stores};

/// A value that no device sends: theirs are integers.
const UNSENT: f64 = 0.5;

on_stores!(finds_corruption, super::finds_all, [sqlite, mongodb, timeseries]);

async fn finds_all(store: Store<'_>) {
    let mut test = FaultTest::start("none: a test of the audit", store).await;
    test.wait_for_acks(2_000).await;
    test.findings().await.assert_none();

    let mut instants = instants_of_the_first_hour(&test).into_iter();
    let mut next = || instants.next().expect("enough devices");
    let [lost, twice, changed, refused, rolled_up] = [next(), next(), next(), next(), next()];
    let refused = (Arc::clone(&refused.0), test.record_refused(&refused.0, refused.1));
    let data_dir = test.servers[0].data_dir();
    for (what, (device, ts_ms)) in [
        (Corruption::Loss, &lost),
        (Corruption::Duplicate, &twice),
        (Corruption::Value(UNSENT), &changed),
        (Corruption::Reading(UNSENT), &refused),
        (Corruption::Rollup, &rolled_up),
    ] {
        corrupt(what, store, &data_dir, device, *ts_ms).await;
    }

    let mut findings = test.findings().await;
    findings.duplicated.sort();
    let stored = test.history.identities();
    let at = |place: &(Arc<str>, i64)| {
        let here = stored.iter().filter(|identity| identity.0 == place.0 && identity.1 == place.1);
        here.cloned().collect::<Vec<Identity>>()
    };
    assert_eq!(findings.lost, at(&lost));
    assert_eq!(findings.duplicated, at(&twice));
    let assert_one = |what: &str| {
        let found = findings.wrong.iter().filter(|wrong| wrong.starts_with(what)).count();
        assert_eq!(found, 1, "{what}: {:#?}", findings.wrong);
    };
    assert_one(&format!("{:?} is Some({UNSENT:?}), allowed are", (&changed.0, changed.1, "a")));
    assert_one(&format!("{:?} is stored, but was refused or never sent", (&refused.0, refused.1, "a")));
    let hour_ms = rolled_up.1 - rolled_up.1.rem_euclid(super::HOUR_MS);
    assert_one(&format!("the stored rollup of {:?} is", (&rolled_up.0, hour_ms, "a")));
    let about_values = findings.wrong.iter().filter(|wrong| wrong.contains("allowed are")).count();
    assert_eq!(about_values, 2, "the changed value and the refused value: {:#?}", findings.wrong);
}

/// A stored instant in the first hour for each device that has one.
fn instants_of_the_first_hour(test: &FaultTest<'_>) -> Vec<(Arc<str>, i64)> {
    let identities = test.history.identities();
    let stored = identities.into_iter().filter(|identity| !test.history.allowed(identity).contains(&None));
    let mut instants: Vec<(Arc<str>, i64)> = stored
        .filter(|identity| identity.1 < test.start_ms + super::HOUR_MS)
        .map(|(of, ts_ms, _)| (of, ts_ms))
        .collect();
    instants.dedup_by(|next, first| next.0 == first.0);
    instants
}
