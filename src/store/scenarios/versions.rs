//! Scenarios of data that an older version has written.

use super::*;

/// Each hour holds what an older version wrote. Then each is written to in another way.
pub(in crate::store) async fn stats_of_an_older_version_stay_beside_those_of_this(
    guard: &impl OlderVersion,
    store: &dyn Store,
) {
    let device = "older";
    let hour = |nth: i32| Hour(HOUR.0 + nth);
    let old: &[Sent<'_>] = &[(10, &[("a", 1.0), ("b", 2.0)]), (20, &[("a", -3.0)])];
    for nth in 0..5 {
        assert_eq!(write(store, &write_of(device, hour(nth), old)).await, written(2, 0));
        roll_up(store, device, hour(nth)).await;
        expect(store, device, hour(nth), &model_of(old)).await;
    }
    guard.make_stats_older(device).await;
    for nth in 0..5 {
        assert_eq!(found(store, device, hour(nth)).await, without_ends(hour(nth), old), "hour {nth}");
    }

    assert_eq!(write(store, &write_of(device, hour(0), old)).await, written(0, 2), "resent");
    assert_eq!(found(store, device, hour(0)).await, without_ends(hour(0), old), "they are not known");

    let later: &[Sent<'_>] = &[(30, &[("a", 5.0), ("b", -4.0), ("c", 7.0)])];
    let early: &[Sent<'_>] = &[(5, &[("a", 9.0), ("b", 8.0)])];
    let again: &[Sent<'_>] = &[(10, &[("a", 1.25), ("b", 2.25)])];
    for (nth, sent, stored) in [(1, later, 1), (2, early, 1), (3, again, 0)] {
        let duplicate = sent.len() as u32 - stored;
        assert_eq!(write(store, &write_of(device, hour(nth), sent)).await, written(stored, duplicate));
        roll_up(store, device, hour(nth)).await;
    }
    for (nth, sent) in [(1, later), (2, early)] {
        expect(store, device, hour(nth), &model_of(&[old, sent].concat())).await;
        // The fast path is open again.
        let last: &[Sent<'_>] = &[(40, &[("a", -6.0), ("b", 6.0)])];
        assert_eq!(write(store, &write_of(device, hour(nth), last)).await, written(1, 0));
        roll_up(store, device, hour(nth)).await;
        expect(store, device, hour(nth), &model_of(&[old, sent, last].concat())).await;
    }
    match store.keeps() {
        Keep::Last => expect(store, device, hour(3), &model_of(&[old, again].concat())).await,
        Keep::First => assert_eq!(found(store, device, hour(3)).await, without_ends(hour(3), old), "unchanged"),
    }

    let all = hour_stats(store, device, hour(0)..hour(9), &SeriesFilter::ALL).await;
    let is_known = |hour: &HourStats| hour.stats.iter().all(|(_, stats)| stats.first.is_some() && stats.last.is_some());
    let known: Vec<bool> = all.iter().map(is_known).collect();
    assert_eq!(known, [false, true, true, store.keeps() == Keep::Last, false], "side by side");
}

async fn roll_up(store: &dyn Store, device: &str, hour: Hour) {
    if let Some(rollups) = store.rollups() {
        rollups.roll_up(&[(device.into(), hour)]).await.remove(0).unwrap();
    }
}

async fn found(store: &dyn Store, device: &str, hour: Hour) -> BTreeMap<String, Stats> {
    by_name(&hour_stats(store, device, only(hour), &SeriesFilter::ALL).await[0].stats)
}

fn without_ends(hour: Hour, readings: &[Sent<'_>]) -> BTreeMap<String, Stats> {
    let fold = fold(hour, &model_of(readings)).into_iter();
    fold.map(|(metric, stats)| (metric, Stats { first: None, last: None, ..stats })).collect()
}
