//! The audit is audited: what is planted in a store is found, and nothing else is.

use std::sync::Arc;

use super::plant::{Plant, plant};
use crate::fire::ledger::Identity;
use crate::fire::siege::Siege;
use crate::fire::store::Store;
use crate::harness::Database;

/// Nobody sends it: the values of the devices are whole numbers.
const NOBODYS: f64 = 0.5;

#[tokio::test]
async fn an_audit_finds_what_was_planted_with_sqlite() {
    finds_what_was_planted(Store::Sqlite).await;
}

#[tokio::test]
async fn an_audit_finds_what_was_planted_with_mongodb() {
    finds_what_was_planted(Store::Mongodb(&Database::new())).await;
}

#[tokio::test]
async fn an_audit_finds_what_was_planted_with_mongodb_timeseries() {
    finds_what_was_planted(Store::Timeseries(&Database::new())).await;
}

async fn finds_what_was_planted(store: Store<'_>) {
    let mut siege = Siege::begin("none: the audit is audited", store).await;
    siege.acked(2_000).await;
    siege.findings().await.assert_none();

    let mut instants = instants_of_the_first_hour(&siege).into_iter();
    let mut next = || instants.next().expect("devices enough");
    let [lost, twice, changed, refused, rolled_up] = [next(), next(), next(), next(), next()];
    let refused = (Arc::clone(&refused.0), siege.refused_beside(&refused.0, refused.1));
    let data_dir = siege.servers[0].data_dir();
    for (what, (device, ts_ms)) in [
        (Plant::Loss, &lost),
        (Plant::Duplicate, &twice),
        (Plant::Value(NOBODYS), &changed),
        (Plant::Reading(NOBODYS), &refused),
        (Plant::Rollup, &rolled_up),
    ] {
        plant(what, store, &data_dir, device, *ts_ms).await;
    }

    let mut findings = siege.findings().await;
    findings.duplicated.sort();
    let stored = siege.ledger.identities();
    let at = |place: &(Arc<str>, i64)| {
        let here = stored.iter().filter(|identity| identity.0 == place.0 && identity.1 == place.1);
        here.cloned().collect::<Vec<Identity>>()
    };
    assert_eq!(findings.lost, at(&lost));
    assert_eq!(findings.duplicated, at(&twice));
    let says = |what: &str| {
        let found = findings.wrong.iter().filter(|wrong| wrong.starts_with(what)).count();
        assert_eq!(found, 1, "{what}: {:#?}", findings.wrong);
    };
    says(&format!("{:?} is Some({NOBODYS:?}), it may be", (&changed.0, changed.1, "a")));
    says(&format!("{:?} is there, and nobody sent it or it was refused", (&refused.0, refused.1, "a")));
    let hour_ms = rolled_up.1 - rolled_up.1.rem_euclid(super::HOUR_MS);
    says(&format!("the stored rollup of {:?} is", (&rolled_up.0, hour_ms, "a")));
    let about_values = findings.wrong.iter().filter(|wrong| wrong.contains("it may be")).count();
    assert_eq!(about_values, 2, "that of the value and that of the refused one: {:#?}", findings.wrong);
}

/// A stored instant of each of some devices, in an hour that is over for long.
fn instants_of_the_first_hour(siege: &Siege<'_>) -> Vec<(Arc<str>, i64)> {
    let identities = siege.ledger.identities();
    let stored = identities.into_iter().filter(|identity| !siege.ledger.allowed(identity).contains(&None));
    let mut instants: Vec<(Arc<str>, i64)> = stored
        .filter(|identity| identity.1 < siege.start_ms + super::HOUR_MS)
        .map(|(of, ts_ms, _)| (of, ts_ms))
        .collect();
    instants.dedup_by(|next, first| next.0 == first.0);
    instants
}
