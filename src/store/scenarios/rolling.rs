//! Scenarios of stores with separate rollups ([`Rollups`]).

use super::*;
use crate::store::Rollups;

fn rollups(store: &dyn Store) -> &dyn Rollups {
    store.rollups().expect("a store whose hours are rolled up")
}

/// Hours and devices are found without recorded progress, and both handles then read the same rollups.
pub(in crate::store) async fn hours_are_rolled_up_one_after_the_other(store: &dyn Store, other: &dyn Store) {
    let readings: Vec<Sent<'_>> = (0..5).map(|at| (at * 1000, [("a", 1.5)].as_slice())).collect();
    let (devices, hours) = (["rolled-1", "rolled-2"], [-2, 0, 3].map(|nth| Hour(HOUR.0 + nth)));
    for (device, hour) in devices.iter().flat_map(|device| hours.iter().map(move |hour| (*device, *hour))) {
        assert_eq!(write(store, &write_of(device, hour, &readings)).await, written(5, 0));
    }
    let mut found = Vec::new();
    let mut next = Hour(i32::MIN);
    while let Some(hour) = rollups(other).next_hour(next).await.unwrap() {
        assert_eq!(rollups(other).roll_up_hour(hour).await.unwrap(), 2, "devices of {hour:?}");
        found.push(hour);
        next = Hour(hour.0 + 1);
    }
    assert_eq!(found, hours);
    for device in devices {
        for hour in hours {
            expect(store, device, hour, &model_of(&readings)).await;
        }
    }
}

/// The database has no reading before 1970: MongoDB searches times in another way then.
pub(in crate::store) async fn hours_soon_after_1970_are_rolled_up(store: &dyn Store, other: &dyn Store) {
    let hours = [Hour(0), Hour(1), Hour(30), HOUR];
    for hour in hours {
        assert_eq!(write(store, &write_of("early", hour, &[(0, &[("a", 1.0)])])).await, written(1, 0));
    }
    for (start, expected) in [(-9, hours[0]), (0, hours[0]), (1, hours[1]), (2, hours[2]), (31, hours[3])] {
        assert_eq!(rollups(other).next_hour(Hour(start)).await.unwrap(), Some(expected), "from {start}");
    }
    for hour in hours {
        assert_eq!(rollups(other).roll_up_hour(hour).await.unwrap(), 1, "{hour:?}");
        assert!(rollups(other).roll_up(&[("early".into(), hour)]).await.iter().all(Result::is_ok));
    }
    let stats = hour_stats(other, "early", Hour(-9)..Hour(HOUR.0 + 1), &SeriesFilter::ALL).await;
    assert!(stats.iter().map(|stats| stats.hour).eq(hours), "{stats:?}");
}

/// All instances know the rollups by the same name.
pub(in crate::store) async fn instances_agree_on_what_is_rolled_up(store: &dyn Store, other: &dyn Store) {
    let identity = rollups(store).identity().await.unwrap();
    assert_eq!(write(other, &write_of("named", HOUR, &[(0, &[("a", 1.0)])])).await, written(1, 0));
    assert_eq!(rollups(other).identity().await.unwrap(), identity);
    assert_eq!(rollups(store).identity().await.unwrap(), identity);
}
