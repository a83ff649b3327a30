//! Scenarios of hours whose readings have expired, and that get readings again.

use std::collections::BTreeSet;

use super::*;
use crate::model::Deletion;

const DEVICE: &str = "expired-late";

/// Writes readings, and rolls their hour up again as the flush does.
async fn write_late(store: &dyn Store, readings: &[Sent<'_>]) {
    write(store, &write_of(DEVICE, HOUR, readings)).await;
    if let Some(rollups) = store.rollups() {
        for _ in 0..2 {
            in_the_end(async || rollups.roll_up(&[(DEVICE.into(), HOUR)]).await.remove(0)).await;
        }
    }
}

async fn stats(store: &dyn Store) -> BTreeMap<String, Stats> {
    let found = hour_stats(store, DEVICE, only(HOUR), &SeriesFilter::ALL).await;
    assert_eq!(found.len(), 1);
    by_name(&found[0].stats)
}

async fn readings(store: &dyn Store) -> Model {
    let contents = store.contents(DEVICE, only(HOUR)).await.unwrap();
    contents.first().map_or_else(Model::new, |(_, contents)| samples_of(contents))
}

/// Later readings may be those that have expired. So they do not change the stats of their series, unless
/// there are at least as many of them, and they reach from the first instant to the last.
pub(in crate::store) async fn stats_of_expired_readings_stay_until_later_ones_may_include_them<E: Expiry>(
    guard: &E,
    store: &dyn Store,
) {
    let first: [Sent<'_>; 3] = [(10, &[("a", 1.0)]), (20, &[("a", 2.0), ("b", 5.0)]), (30, &[("a", 6.0)])];
    write_late(store, &first).await;
    guard.expire_readings(store, DEVICE).await;
    let mut expected = fold(HOUR, &model_of(&first));
    assert_eq!((stats(store).await, readings(store).await), (expected.clone(), Model::new()));

    let mut late = Model::new();
    let mut write_late = async |readings: &[Sent<'_>]| {
        write_late(store, readings).await;
        late.extend(model_of(readings));
        assert_eq!(self::readings(store).await, late);
        late.clone()
    };
    let value: &[(&str, f64)] = &[("a", 100.0)];
    let at_once: [Sent<'_>; 5] = [23, 24, 25, 26, 27].map(|offset| (offset, value));
    write_late(&at_once).await;
    assert_eq!(stats(store).await, expected, "more values at once than have expired");
    for at in 0..6 {
        write_late(&[(11 + at, &[("a", 100.0)])]).await;
        assert_eq!(stats(store).await, expected, "late reading {at}");
    }
    for at in 0..3 {
        let late = write_late(&[(20 + at, &[("c", f64::from(at))])]).await; // the rollup has no such series
        expected.insert("c".to_owned(), fold(HOUR, &late)["c"]);
        assert_eq!(stats(store).await, expected, "reading {at} of another series");
    }
    write_late(&first[1..]).await;
    expected.insert("b".to_owned(), fold(HOUR, &model_of(&first))["b"]);
    assert_eq!(stats(store).await, expected, "the first reading is not there");
    let all = write_late(&first).await;
    expected = fold(HOUR, &all);
    assert_eq!((stats(store).await, expected["a"].count), (expected.clone(), 14));

    guard.expire_readings(store, DEVICE).await;
    assert_eq!(stats(store).await, expected);
    for at in 0..6 {
        self::write_late(store, &[(40 + at, &[("a", 7.0)])]).await;
        assert_eq!(stats(store).await, expected, "late reading {at} after the second expiry");
    }

    let of_a =
        Deletion { device: DEVICE.into(), range_ms: Some(HOUR.start_ms()..HOUR.end_ms()), series: series_of(&["a"]) };
    let deletions = store.deletions();
    if deletions.refusal(&of_a).is_none() {
        assert_eq!(deletions.delete(&of_a, &BTreeSet::new()).await.unwrap().readings, 6);
        expected.remove("a");
        assert_eq!(stats(store).await, expected);
        self::write_late(store, &[(50, &[("a", 7.0)])]).await;
        expected.insert("a".to_owned(), Stats::of(HOUR.instant_ms(50), 7.0));
        assert_eq!(stats(store).await, expected);
    }
}
