//! Scenarios of stores with separate rollups ([`Rollups`]).

use super::*;
use crate::model::Day;
use crate::store::{RolledUp, Rollups, StoreError};

fn rollups(store: &dyn Store) -> &dyn Rollups {
    store.rollups().expect("a store whose days are rolled up")
}

/// Rolls up hours of one day of all devices, as the roller does. Returns how many rollups were written.
pub(in crate::store) async fn roll_up_hours(store: &dyn Store, hours: Range<Hour>) -> Result<u64, StoreError> {
    assert!(rollups(store).is_ready().await?, "the device index has all devices");
    let (mut done, mut after) = (0, None::<Arc<str>>);
    loop {
        let RolledUp { written, last, .. } = rollups(store).roll_up_devices(hours.clone(), after.as_deref()).await?;
        done += written;
        assert!(last.is_none() || last > after, "{last:?} after {after:?}");
        let Some(last) = last else { return Ok(done) };
        after = Some(last);
    }
}

/// Hours and devices are found without recorded progress, and both handles then read the same rollups.
pub(in crate::store) async fn days_are_rolled_up_one_after_the_other(store: &dyn Store, other: &dyn Store) {
    let readings: Vec<Sent<'_>> = (0..5).map(|at| (at * 1000, [("a", 1.5)].as_slice())).collect();
    // HOUR is 14:00; one hour is the last of the day before, and one of the day after
    let (devices, hours) = (["rolled-1", "rolled-2"], [-15, -14, 0, 3, 9, 10].map(|nth| Hour(HOUR.0 + nth)));
    for (device, hour) in devices.iter().flat_map(|device| hours.iter().map(move |hour| (*device, *hour))) {
        assert_eq!(write(store, &write_of(device, hour, &readings)).await, written(5, 0));
    }
    let mut done = Vec::new();
    let mut next = Hour(i32::MIN);
    while let Some(hour) = rollups(other).next_hour(next).await.unwrap() {
        let day = Day::of(hour);
        done.push((hour, roll_up_hours(other, day.hours()).await.unwrap()));
        assert_eq!(roll_up_hours(store, day.hours()).await.unwrap(), 0, "the other instance has done so");
        next = day.hours().end;
    }
    assert_eq!(done, [(hours[0], 2), (hours[1], 8), (hours[5], 2)]);
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
    for (day, expected) in [(Day(-1), 0), (Day(0), 2), (Day(1), 1), (Day::of(HOUR), 1)] {
        assert_eq!(roll_up_hours(other, day.hours()).await.unwrap(), expected, "{day:?}");
    }
    let buckets = hours.map(|hour| ("early".into(), hour));
    assert!(rollups(other).roll_up(&buckets).await.iter().all(Result::is_ok));
    let stats = hour_stats(other, "early", Hour(-9)..Hour(HOUR.0 + 1), &SeriesFilter::ALL).await;
    assert!(stats.iter().map(|stats| stats.hour).eq(hours), "{stats:?}");
}

/// Late readings of several hours of several days, some rolled up before and some not.
pub(in crate::store) async fn late_hours_of_a_day_are_rolled_up_together(store: &dyn Store, other: &dyn Store) {
    let hours: Vec<Hour> = [-20, -15, -14, 0, 1, 9].map(|nth| Hour(HOUR.0 + nth)).into();
    for &hour in &hours[..4] {
        write(store, &write_of("late", hour, &[(1000, &[("a", 1.0)])])).await;
    }
    assert_eq!(roll_up_hours(store, Day::of(HOUR).hours()).await.unwrap(), 2);
    let mut buckets = Vec::new();
    for device in ["late", "later"] {
        for &hour in &hours {
            write(store, &write_of(device, hour, &[(500, &[("b", 2.0)]), (2000, &[("a", 4.0)])])).await;
            buckets.push((device.into(), hour));
        }
    }
    assert!(rollups(other).roll_up(&buckets).await.iter().all(Result::is_ok));
    assert_eq!(roll_up_hours(other, Day::of(HOUR).hours()).await.unwrap(), 0, "all hours are up to date");
    for (device, before) in [("late", &hours[..4]), ("later", &[])] {
        let stats = hour_stats(other, device, Hour(HOUR.0 - 30)..Hour(HOUR.0 + 30), &SeriesFilter::ALL).await;
        assert!(stats.iter().map(|stats| stats.hour).eq(hours.iter().copied()), "{stats:?}");
        for of_hour in stats {
            let sum = |metric: &str| {
                let found = of_hour.stats.iter().find(|(name, _)| &**name == metric);
                found.map(|(_, stats)| (stats.count, stats.sum))
            };
            let expected = if before.contains(&of_hour.hour) { (2, 5.0) } else { (1, 4.0) };
            assert_eq!((sum("a"), sum("b")), (Some(expected), Some((1, 2.0))), "{device} {:?}", of_hour.hour);
        }
    }
}

/// In MongoDB, the `_id`s of the second device are in the range of the last hour of a day of the first one.
/// The hours are more than one query asks for.
pub(in crate::store) async fn hours_of_devices_with_alike_ids_are_counted_once(store: &dyn Store, other: &dyn Store) {
    const HOURS: i32 = 260;
    let (device, alike) = ("ss", "ss/2026-04-02");
    let last_of_day = Hour(HOUR.0 - 18 * 24 - 15); // 2026-04-01T23:00:00Z
    let mut buckets: Vec<(Arc<str>, Hour)> = vec![(device.into(), last_of_day)];
    buckets.extend((0..HOURS).map(|nth| (Arc::from(alike), Hour(HOUR.0 + 2 * nth))));
    for offset in [1_000_u32, 2_000] {
        let of_bucket = |(device, hour): &(Arc<str>, Hour)| write_of(device, *hour, &[(offset, &[("a", 1.5)])]);
        let writes: Vec<_> = buckets.iter().map(of_bucket).collect();
        assert!(store.write(&writes).await.iter().all(Result::is_ok));
        assert!(rollups(other).roll_up(&buckets).await.iter().all(Result::is_ok));
        let count = u64::from(offset / 1_000);
        for (device, hours) in [(device, last_of_day..HOUR), (alike, HOUR..Hour(HOUR.0 + 2 * HOURS))] {
            let stats = hour_stats(other, device, hours, &SeriesFilter::ALL).await;
            let counts = stats.iter().map(|of_hour| (of_hour.hour, of_hour.stats[0].1.count));
            let expected = buckets.iter().filter(|(of, _)| **of == *device).map(|(_, hour)| (*hour, count));
            assert!(counts.eq(expected), "{device}: {stats:?}");
        }
    }
    assert_eq!(write(store, &write_of(alike, last_of_day, &[(0, &[("a", 1.5)])])).await, written(1, 0));
    assert_eq!(write(store, &write_of(alike, Hour(HOUR.0 + 1), &[(0, &[("a", 1.5)])])).await, written(1, 0));
    let day = Day::of(last_of_day).hours();
    assert_eq!(roll_up_hours(other, day).await.unwrap(), 1, "the other hours of the device are of other days");
}

/// All instances get the same identity of the rollups.
pub(in crate::store) async fn instances_agree_on_what_is_rolled_up(store: &dyn Store, other: &dyn Store) {
    let identity = rollups(store).identity().await.unwrap();
    assert_eq!(write(other, &write_of("named", HOUR, &[(0, &[("a", 1.0)])])).await, written(1, 0));
    assert_eq!(rollups(other).identity().await.unwrap(), identity);
    assert_eq!(rollups(store).identity().await.unwrap(), identity);
}

/// Some devices have no rollup of the day, others lack some hours, and their IDs look like the documents of
/// others.
pub(in crate::store) async fn several_devices_have_the_stats_that_each_has_alone(store: &dyn Store, other: &dyn Store) {
    let devices: Vec<Arc<str>> = ["d", "d/2026-04-20T05", "d.x", "d-x", "dx"].map(Arc::from).into();
    let day = Day::of(HOUR).hours();
    for device in &devices[..3] {
        for hour in [3, 7].map(|nth| Hour(day.start.0 + nth)) {
            write(store, &write_of(device, hour, &[(0, &[("a", 1.0)])])).await;
        }
    }
    assert_eq!(roll_up_hours(store, day.clone()).await.unwrap(), 6);
    let late = [-1, 0, 7, 9, 23, 24, 30];
    for device in &devices {
        for nth in late {
            write(store, &write_of(device, Hour(day.start.0 + nth), &[(5_000, &[("a", 2.0)])])).await;
        }
    }
    for (from, to) in [(0, 24), (8, 11), (2, 20), (22, 25), (-1, 31)] {
        let hours = Hour(day.start.0 + from)..Hour(day.start.0 + to);
        let found = other.hour_stats(&devices, hours.clone(), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap();
        for (at, (device, found)) in devices.iter().zip(found).enumerate() {
            assert_eq!(found, hour_stats(other, device, hours.clone(), &SeriesFilter::ALL).await, "{device} {hours:?}");
            let stored = late.iter().chain([&3].into_iter().filter(|_| at < 3)).filter(|nth| (from..to).contains(nth));
            assert_eq!(found.len(), stored.count(), "{device} {hours:?}");
        }
    }
}
