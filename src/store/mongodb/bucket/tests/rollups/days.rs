//! Days of all devices are rolled up, in steps along the device index.

use super::*;

/// However many days are stored, and whichever index the collection has besides `_id`.
#[tokio::test]
async fn rolling_up_a_day_reads_the_buckets_of_that_day_only() {
    let scratch = Scratch::new().await;
    let store = scratch.store_with_capacity(3).await;
    for device in ["d", "e/2026-04-20T14", "f"] {
        let writes: Vec<_> = (-40..40).map(|nth| write_in(device, hour(nth), &[(1, 0, nth), (2, 1, nth)])).collect();
        write_all(&store, &writes).await;
        let many: Vec<_> = (0..20).map(|at| (at, 0, 1)).collect();
        write_all(&store, &[write_in(device, hour(2), &many)]).await;
    }
    write_all(&store, &[write_in("of-another-day", hour(20), &[(1, 0, 1)])]).await;
    write_all(&store, &[write_in("of-days-around", hour(-30), &[(1, 0, 1)])]).await;
    write_all(&store, &[write_in("of-days-around", hour(30), &[(1, 0, 1)])]).await;
    let parts = scratch.all(doc! { "find": "buckets", "filter": { "part": { "$gt": 0 } }, "batchSize": 1000 }).await;
    assert!(parts.len() > 12, "more than two rounds of parts: {}", parts.len());
    scratch.run(doc! { "profile": 2 }).await;
    assert_eq!(roll_up_hours(&store, Day::of(HOUR).hours()).await.unwrap(), 3 * 24);
    scratch.run(doc! { "profile": 0 }).await;
    assert_eq!(scratch.examined("buckets").await, 3 * 24 + parts.len() as i64);
    let days = scratch.rollups().await;
    assert_eq!(days.len(), 3);
    for day in days {
        assert_eq!(day.get_document("hours").unwrap().len(), 24);
        let device = day.get_str("deviceId").unwrap();
        let found = stats(&store, device, 2..3).await;
        assert_eq!(
            by_name(&found[0].stats),
            by_name(&stored(&store, device, hour(2)).await.stats(hour(2))),
            "{device}"
        );
    }
}

#[tokio::test]
async fn a_whole_day_is_rolled_up_and_can_be_gone_on_with_after_it_was_broken_off() {
    let scratch = Scratch::new().await;
    let stores = [scratch.store_with_capacity(3).await, scratch.store_with_capacity(3).await];
    let device = |nth: i32| format!("device-{nth:04}");
    let writes: Vec<_> =
        (0..1_500).map(|nth| write_in(&device(nth), HOUR, &[(1, 0, nth), (2, 0, 1), (3, 1, 2), (4, 0, 3)])).collect();
    write_all(&stores[0], &writes).await;
    let around = [-15, -1, 1, 10].map(|nth| write_in(&device(0), hour(nth), &[(1, 0, 1)]));
    write_all(&stores[0], &around).await;
    let some: Vec<_> = (1_300..1_500).map(|nth| (device(nth).into(), HOUR)).collect();
    assert!(stores[0].roll_up(&some).await.iter().all(Result::is_ok));

    let day = Day::of(HOUR).hours();
    let first = stores[0].roll_up_devices(day.clone(), None).await.unwrap();
    let last = first.last.unwrap();
    assert!((100..1_000).contains(&first.written) && *last == *device(first.written as i32 - 3), "{last}");
    let (mut after, mut found, mut written) = (Some(last), first.found, first.written);
    while let Some(last) = after {
        let next = stores[1].roll_up_devices(day.clone(), Some(&last)).await.unwrap();
        found += next.found;
        written += next.written;
        after = next.last;
    }
    assert_eq!(written, 1_300 + 2, "those that were left, and the hours around of the first device");
    assert_eq!(found, 1_500 + 2, "also those that were rolled up before");
    assert_eq!(roll_up_hours(&stores[0], day).await.unwrap(), 0);

    scratch.delete_buckets(doc! {}).await;
    let devices: Vec<Arc<str>> = (0..1_500).map(|nth| device(nth).into()).collect();
    let found = stores[0].hour_stats(&devices, hour(-20)..hour(20), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap();
    for (found, write) in found.iter().zip(&writes) {
        let of_hour = found.iter().find(|stats| stats.hour == HOUR).unwrap();
        assert_eq!(by_name(&of_hour.stats), by_name(&write.contents.stats(HOUR)), "{}", write.device);
        assert_eq!(found.len(), if *write.device == *device(0) { 3 } else { 1 }, "the days around are not touched");
    }
}

/// While the index of the devices lacks some of them, a walk over it would end without their rollups.
#[tokio::test]
async fn no_day_is_rolled_up_while_the_device_index_is_not_complete() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    write_all(&store, &["a", "b", "c"].map(|device| write_in(device, HOUR, &[(1, 0, 1)]))).await;
    scratch.run(doc! { "drop": "devices" }).await;
    let day = Day::of(HOUR).hours();
    assert_eq!(store.roll_up_devices(day.clone(), None).await.unwrap_err().cause, Cause::Schema);
    store.ping().await.unwrap(); // which notices it
    write_all(&store, &[write_in("c", HOUR, &[(2, 0, 1)])]).await;
    assert!(!store.is_ready().await.unwrap(), "the index has one device only");
    assert_eq!(store.roll_up_devices(day.clone(), None).await.unwrap_err().cause, Cause::Schema);
    assert_eq!(store.rebuild_device_index().await.unwrap(), 3);
    assert_eq!(roll_up_hours(&store, day).await.unwrap(), 3);
}

/// Hours that expired before the day is rolled up are lost, and those that were rolled up before stay.
#[tokio::test]
async fn a_day_whose_first_hours_have_expired_keeps_their_rollups() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    let writes: Vec<_> = (-4..4).map(|nth| write_in("d", hour(nth), &[(1, 0, nth)])).collect();
    write_all(&store, &writes).await;
    assert_eq!(roll_up_hours(&store, hour(-4)..hour(-1)).await.unwrap(), 3);
    scratch.delete_buckets(doc! { "bucket": { "$lt": bson::DateTime::from_millis(HOUR.start_ms()) } }).await;
    assert_eq!(roll_up_hours(&store, Day::of(HOUR).hours()).await.unwrap(), 4);
    let found = stats(&store, "d", -9..9).await;
    assert!(found.iter().map(|stats| stats.hour).eq([-4, -3, -2, 0, 1, 2, 3].map(hour)), "{found:?}");
}

/// A day with very many series exceeds the size of a document: the hours that fit are stored.
///
/// The driver's heartbeats need a thread of their own: encoding 54 MB may take longer than they may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_that_the_server_refuses_is_written_hour_by_hour() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    store.ensure_schema().await.unwrap();
    let long = "x".repeat(20_000);
    let of_one = write_in("x", HOUR, &[(0, 0, 4)]).contents.stats(HOUR)[0].1;
    let rollup = |device: &str, nth: i32, series: usize| HourRollup {
        device: device.into(),
        rev: 1,
        first_ts_ms: hour(nth).start_ms(),
        stats: HourStats {
            hour: hour(nth),
            last_ts_ms: hour(nth).start_ms(),
            stats: (0..series).map(|at| (Metric::from(format!("{at}{long}").as_str()), of_one)).collect(),
        },
        may_lack_deleted: false,
    };
    // The driver does not send the 54 MB of the first day.
    let huge = (0..9).map(|nth| rollup("huge", nth, 300));
    let large = (0..3).map(|nth| rollup("large", nth, 300));
    let small = (0..2).map(|nth| rollup("small", nth, 1));
    let rollups = huge.chain(large).chain(small).collect();
    assert_eq!(store.rollups.bring_up_to_date(&Day::of(HOUR).hours(), rollups).await.unwrap(), (6, 8));
    for device in ["huge", "large", "small"] {
        assert_eq!(stats(&store, device, 0..9).await.len(), 2, "{device}");
    }
}

/// Two instances write hours of one new document at the same time: the slower one gets a duplicate key, which
/// does not mean that its own hour is stored.
#[tokio::test]
async fn instances_that_roll_up_hours_of_the_same_new_day_lose_none() {
    let scratch = Scratch::new().await;
    let stores = [scratch.store().await, scratch.store().await];
    for round in 0..6 {
        let devices: Vec<Arc<str>> = (0..60).map(|nth| format!("d{round}-{nth}").into()).collect();
        let of_hour = |nth: i32| devices.iter().map(move |device| (Arc::clone(device), hour(nth)));
        let write = |(device, hour): (Arc<str>, Hour)| write_in(&device, hour, &[(1, 0, 1)]);
        write_all(&stores[0], &(0..8).flat_map(of_hour).map(write).collect::<Vec<_>>()).await;
        let rolling = (0..8_usize).map(|nth| {
            let hours: Vec<_> = of_hour(nth as i32).collect();
            let store = &stores[nth % 2];
            async move { store.roll_up(&hours).await }
        });
        let outcomes = futures_util::future::join_all(rolling).await;
        assert!(outcomes.iter().flatten().all(Result::is_ok));
        scratch.delete_buckets(doc! {}).await;
        for found in
            stores[0].hour_stats(&devices, hour(0)..hour(8), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap()
        {
            assert_eq!(found.len(), 8, "round {round}");
        }
    }
}

#[tokio::test]
async fn hours_with_readings_are_found_one_after_the_other() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    assert_eq!(store.next_hour(Hour(i32::MIN)).await.unwrap(), None);
    for nth in [5, -3, 0] {
        write_all(&store, &[write_in("d", hour(nth), &[(1, 0, 1)]), write_in("e", hour(nth), &[(1, 0, 1)])]).await;
    }
    for (from, expected) in [(i32::MIN, Some(-3)), (HOUR.0 - 3, Some(-3)), (HOUR.0 - 2, Some(0)), (HOUR.0 + 1, Some(5))]
    {
        assert_eq!(store.next_hour(Hour(from)).await.unwrap(), expected.map(hour), "from {from}");
    }
    assert_eq!(store.next_hour(hour(6)).await.unwrap(), None);
    let last_of_javascript = bson::DateTime::from_millis(8_640_000_000_000_000);
    let update = doc! { "q": { "deviceId": "d" }, "u": { "$set": { "createdAt": last_of_javascript } }, "multi": true };
    scratch.run(doc! { "update": "buckets", "updates": [update] }).await;
    assert!(store.next_hour(hour(6)).await.unwrap().is_some_and(|found| found > hour(6)));
}
