//! Scenarios of the device index: what a store knows of a device from all its hours.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::*;
use crate::model::{Day, ValueAt};
use crate::store::device_index::MAX_SERIES;
use crate::store::{DeviceMetadata, DeviceSeries, DeviceSet, DeviceSummary};

const VALUE: &[(&str, f64)] = &[("a", 1.5)];

/// An hour of 2026-04-20, or after it.
fn hour(of_day: i32) -> Hour {
    Hour(HOUR.0 - 14 + of_day)
}

/// A device, after a check that the list and the query of one device agree.
async fn device(store: &dyn Store, device: &str) -> DeviceSummary {
    let one = store.device(device).await.unwrap().expect("it is known");
    let listed = store.devices(device, None, 1).await.unwrap();
    assert_eq!(listed.devices, std::slice::from_ref(&one));
    one
}

fn metadata_of(summary: &DeviceSummary) -> Option<(Hour, Value)> {
    let DeviceMetadata { hour, text } = summary.metadata.as_ref()?;
    Some((*hour, serde_json::from_str(text).unwrap()))
}

fn series(last_days: &[(&str, i32)]) -> Vec<DeviceSeries> {
    let of = |(name, day): &(&str, i32)| DeviceSeries { metric: (*name).into(), last_day: Day(day + Day::of(HOUR).0) };
    last_days.iter().map(of).collect()
}

pub(in crate::store) async fn a_device_is_summed_up_by_all_its_hours(store: &dyn Store) {
    let newest: &[Sent<'_>] = &[(7, &[("z", 1.0), ("b.c", 1.0)]), (9, &[("Z{k=v,w=x}", 1.0)])];
    let steps = [
        (
            with_metadata(write_of("summary", hour(27), newest), r#"{"floor":2}"#),
            series(&[("Z{k=v,w=x}", 1), ("b.c", 1), ("z", 1)]),
        ),
        (
            write_of("summary", hour(0), &[(4, &[("old", 1.0)]), (5, &[("z", 1.0)])]),
            series(&[("Z{k=v,w=x}", 1), ("b.c", 1), ("old", 0), ("z", 1)]),
        ),
        (
            write_of("summary", hour(25), &[(1, &[("$a.b", 1.0), ("old", 1.0)])]),
            series(&[("$a.b", 1), ("Z{k=v,w=x}", 1), ("b.c", 1), ("old", 1), ("z", 1)]),
        ),
        (
            write_of("summary", hour(28), &[(8, &[("z", 1.0)])]),
            series(&[("$a.b", 1), ("Z{k=v,w=x}", 1), ("b.c", 1), ("old", 1), ("z", 1)]),
        ),
    ];
    let mut span = (i64::MAX, i64::MIN);
    for (sent, expected) in steps {
        let (first, last) = sent.contents.span().unwrap();
        span = (span.0.min(sent.hour.instant_ms(first)), span.1.max(sent.hour.instant_ms(last)));
        write(store, &sent).await;
        let summary = device(store, "summary").await;
        assert_eq!(summary.series, expected);
        assert_eq!((summary.first_ts_ms, summary.last_ts_ms), span);
        assert_eq!(metadata_of(&summary), Some((hour(27), json!({ "floor": 2 }))));
        assert!(!summary.has_more_series);
    }
}

pub(in crate::store) async fn metadata_stays_until_it_is_replaced(store: &dyn Store) {
    let at = |offset, nth| write_of("metadata", hour(nth), &[(offset, VALUE)]);
    let of = |offset, nth, metadata| with_metadata(at(offset, nth), metadata);
    let steps = [
        (at(1, 0), None),
        (of(2, 0, r#"{"floor":2,"zone":"Zone 4"}"#), Some((0, json!({ "floor": 2, "zone": "Zone 4" })))),
        (at(3, 0), Some((0, json!({ "floor": 2, "zone": "Zone 4" })))),
        (of(4, 0, r#"{"floor":3}"#), Some((0, json!({ "floor": 3 })))),
        (at(1, 5), Some((0, json!({ "floor": 3 })))),
        (at(1, 50), Some((0, json!({ "floor": 3 })))),
        (of(2, 50, r#"{"floor":5,"tags":["x"]}"#), Some((50, json!({ "floor": 5, "tags": ["x"] })))),
        (of(5, 0, r#"{"floor":1}"#), Some((50, json!({ "floor": 5, "tags": ["x"] })))),
        (at(9, 51), Some((50, json!({ "floor": 5, "tags": ["x"] })))),
        (of(6, 49, r#"{"floor":1}"#), Some((50, json!({ "floor": 5, "tags": ["x"] })))),
        (of(7, 51, "{}"), Some((51, json!({})))),
    ];
    for (nth, (sent, expected)) in steps.into_iter().enumerate() {
        write(store, &sent).await;
        let expected = expected.map(|(at, metadata)| (hour(at), metadata));
        assert_eq!(metadata_of(&device(store, "metadata").await), expected, "after step {nth}");
    }
}

pub(in crate::store) async fn writes_in_any_order_leave_the_metadata_of_the_newest_hour(store: &dyn Store) {
    for seed in seeds(2) {
        let name = format!("any-order-{seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let metadata = |nth: i32| format!(r#"{{"nth":{nth}}}"#);
        let mut writes: Vec<_> = (0..12)
            .map(|nth| {
                let sent = write_of(&name, hour(nth * 7), &[(1, &[(&format!("m{}", nth % 5), 1.0)])]);
                if nth % 3 == 1 { with_metadata(sent, &metadata(nth)) } else { sent }
            })
            .collect();
        writes.shuffle(&mut random);
        while !writes.is_empty() {
            let some = random.random_range(1..=writes.len().min(4));
            for outcome in store.write(&writes.split_off(writes.len() - some)).await {
                assert_eq!(outcome.unwrap(), written(1, 0));
            }
        }
        let summary = device(store, &name).await;
        assert_eq!(metadata_of(&summary), Some((hour(70), json!({ "nth": 10 }))), "seed {seed}");
        let days = [(70, "m0"), (77, "m1"), (49, "m2"), (56, "m3"), (63, "m4")].map(|(nth, name)| (name, nth / 24));
        assert_eq!(summary.series, series(&days), "seed {seed}");
    }
}

pub(in crate::store) async fn a_series_keeps_its_measurement(store: &dyn Store) {
    let with = |offset, measurement| {
        let mut write = write_of("measurement", HOUR, &[(offset, &[("cpu_usage{cpu=0}", 1.0), ("temp", 1.0)])]);
        let metrics = vec![Metric::of_measurement("cpu_usage{cpu=0}", measurement), "temp".into()];
        let contents = &mut Arc::make_mut(&mut write).contents;
        *contents = Contents::new(metrics, contents.samples().to_vec());
        write
    };
    for (offset, measurement, expected) in [(1, 0, None), (2, 3, Some("cpu")), (3, 0, Some("cpu"))] {
        write(store, &with(offset, measurement)).await;
        let summary = device(store, "measurement").await;
        let found: Vec<_> = summary.series.iter().map(|series| series.metric.measurement()).collect();
        assert_eq!(found, [expected, None]);
    }
}

pub(in crate::store) async fn a_device_has_a_bounded_number_of_series(store: &dyn Store) {
    let max = i32::try_from(MAX_SERIES).unwrap();
    let name = |nth: i32| format!("m{nth:05}");
    for (nth, from, to) in [(0, 0, 1_500), (24, 1_000, max), (48, max - 9, max + 700)] {
        let names: Vec<String> = (from..to).map(name).collect();
        let values: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
        write(store, &write_of("bounded", hour(nth), &[(1, &values)])).await;
        let summary = device(store, "bounded").await;
        let first = (to - max).max(0);
        assert_eq!(summary.has_more_series, first > 0);
        assert_eq!(summary.series.len(), usize::try_from(to - first).unwrap());
        assert_eq!(&*summary.series.last().unwrap().metric, name(to - 1), "hour {nth}");
        let newest = summary.series.iter().filter(|series| series.last_day == Day::of(hour(nth))).count();
        assert_eq!(newest, values.len(), "those with the newest readings stay");
        if first > 0 {
            // of the oldest day, the first ones stay: all stores leave out the same
            assert_eq!(&*summary.series[0].metric, name(0));
        }
    }
}

pub(in crate::store) async fn a_list_of_devices_with_many_series_is_cut(store: &dyn Store) {
    let names: Vec<String> = (0..2_000).map(|nth| format!("{nth:0450}")).collect();
    let values: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
    let devices = ["cut:1", "cut:2", "cut:3", "cut:4"];
    for device in devices {
        write(store, &write_of(device, HOUR, &[(1, &values)])).await;
    }
    let (mut found, mut lists) = (Vec::new(), 0);
    loop {
        let after = found.last().map(|last: &Arc<str>| last.to_string());
        let list = store.devices("cut:", after.as_deref(), 10).await.unwrap();
        found.extend(list.devices.into_iter().map(|summary| summary.device));
        lists += 1;
        if !list.is_cut {
            break;
        }
    }
    assert_eq!(found.iter().map(|device| &**device).collect::<Vec<_>>(), devices);
    assert_eq!(lists, 2);
}

pub(in crate::store) async fn devices_whose_readings_have_expired_are_listed(expiry: &impl Expiry, store: &dyn Store) {
    let early: &[Sent<'_>] = &[(4, &[("z", 1.0), ("b.c", 1.0)]), (9, &[("Z", 1.0)])];
    for device in ["expired:mixed", "expired:all"] {
        write(store, &with_metadata(write_of(device, hour(0), &[(7, VALUE)]), r#"{"floor":1}"#)).await;
        write(store, &with_metadata(write_of(device, hour(1), early), r#"{"floor":2}"#)).await;
        expiry.expire_readings(store, device).await;
        assert!(store.contents(device, hour(-9)..hour(9)).await.unwrap().is_empty(), "{device} has expired");
    }
    for device in ["expired:mixed", "expired:none"] {
        write(store, &write_of(device, hour(27), &[(2, VALUE)])).await;
    }
    let summary = |device: &str, metadata: Option<&str>, days: &[(&str, i32)], first_ts_ms, last_ts_ms| DeviceSummary {
        device: device.into(),
        metadata: metadata.map(|text| DeviceMetadata { hour: hour(1), text: text.into() }),
        series: series(days),
        has_more_series: false,
        first_ts_ms,
        last_ts_ms,
        removed_until: None,
    };
    let (first, late, floor) = (hour(0).instant_ms(7), hour(27).instant_ms(2), Some(r#"{"floor":2}"#));
    let mixed = [("Z", 0), ("a", 1), ("b.c", 0), ("z", 0)];
    let expected = [
        summary("expired:all", floor, &[("Z", 0), ("a", 0), ("b.c", 0), ("z", 0)], first, hour(1).instant_ms(9)),
        summary("expired:mixed", floor, &mixed, first, late),
        summary("expired:none", None, &[("a", 1)], late, late),
    ];
    assert_eq!(store.devices("expired:", None, 10).await.unwrap().devices, expected);
    assert_eq!(store.devices("expired:", None, 1).await.unwrap().devices, expected[..1]);
    assert_eq!(store.devices("expired:", Some("expired:all"), 1).await.unwrap().devices, expected[1..2]);
}

/// Each writer remembers what it has written, and knows nothing of the other one.
pub(in crate::store) async fn two_writers_of_one_device_leave_one_entry(store: &dyn Store, other: &dyn Store) {
    let sent = |nth: i32, metric: &str, metadata: &str| {
        with_metadata(write_of("shared", hour(nth), &[(nth.unsigned_abs(), &[(metric, 1.0)])]), metadata)
    };
    for nth in 0..30 {
        let (one, two) = (sent(2 * nth, "one", r#"{"by":1}"#), sent(2 * nth + 1, "two", r#"{"by":2}"#));
        tokio::join!(write(store, &one), write(other, &two));
    }
    for instance in [store, other] {
        let summary = device(instance, "shared").await;
        assert_eq!(summary.series, series(&[("one", 2), ("two", 2)]));
        assert_eq!((summary.first_ts_ms, summary.last_ts_ms), (hour(0).instant_ms(0), hour(59).instant_ms(59)));
        let by = metadata_of(&summary).unwrap();
        assert!(by == (hour(59), json!({ "by": 2 })) || Day::of(by.0) == Day::of(hour(59)), "{by:?}");
    }
    write(store, &sent(80, "one", r#"{"by":3}"#)).await;
    assert_eq!(metadata_of(&device(other, "shared").await), Some((hour(80), json!({ "by": 3 }))));
    write(other, &sent(81, "one", r#"{"by":4}"#)).await;
    assert_eq!(metadata_of(&device(store, "shared").await), Some((hour(81), json!({ "by": 4 }))));
}

pub(in crate::store) async fn stats_of_readings_that_expired_elsewhere_are_added_once(store: &dyn Store) {
    let of_a = |hour: Hour| {
        let at = |offset, value| ValueAt { ts_ms: hour.instant_ms(offset), value };
        Stats { count: 3, min: -1.0, max: 4.0, sum: 5.0, first: at(10, 2.0), last: at(50, 4.0) }
    };
    let hours = [HOUR, Hour(HOUR.0 + 30)].map(|hour| HourStats {
        hour,
        last_ts_ms: hour.instant_ms(50),
        stats: vec![("a".into(), of_a(hour))],
    });
    let metadata = Some(DeviceMetadata { hour: Hour(HOUR.0 - 2), text: r#"{"floor":2}"#.into() });
    let (first_ts_ms, last_ts_ms) = (HOUR.instant_ms(10), Hour(HOUR.0 + 30).instant_ms(50));
    let summary = DeviceSummary::of_hour("elsewhere".into(), HOUR, (first_ts_ms, last_ts_ms), ["a".into()]);
    let entry = DeviceSummary { metadata: metadata.clone(), ..summary };
    let all = HOUR..Hour(HOUR.0 + 40);
    for _ in 0..2 {
        store.add_expired(&entry, &hours).await.unwrap();
        let found = hour_stats(store, "elsewhere", all.clone(), &SeriesFilter::ALL).await;
        assert_eq!(found.len(), hours.len());
        for (found, added) in found.iter().zip(&hours) {
            assert_eq!(found, added);
        }
        let known = store.device("elsewhere").await.unwrap().expect("it is in the device index");
        assert_eq!((known.metadata, known.first_ts_ms, known.last_ts_ms), (metadata.clone(), first_ts_ms, last_ts_ms));
        assert_eq!(known.series, [DeviceSeries::of("a".into(), Hour(HOUR.0 + 30))]);
        assert_eq!(store.contents("elsewhere", all.clone()).await.unwrap(), []);
    }
    // Late readings that are fewer leave the stats.
    assert_eq!(write(store, &write_of("elsewhere", HOUR, &[(20, &[("a", 7.0)])])).await, written(1, 0));
    if let Some(rollups) = store.rollups() {
        assert_eq!(rollups.roll_up(&[("elsewhere".into(), HOUR)]).await.len(), 1);
    }
    let found = hour_stats(store, "elsewhere", only(HOUR), &SeriesFilter::ALL).await;
    assert_eq!(found[0].stats, hours[0].stats);
}

pub(in crate::store) async fn stats_that_expired_elsewhere_join_those_of_stored_readings(store: &dyn Store) {
    let moved = fold(HOUR, &model_of(&[(10, &[("a", 2.0), ("b", 1.0)]), (50, &[("a", 4.0)])]));
    let stats = moved.iter().map(|(name, stats)| (name.as_str().into(), *stats)).collect();
    let moved_hours = [HourStats { hour: HOUR, last_ts_ms: HOUR.instant_ms(50), stats }];
    let sent: [Sent<'_>; 4] =
        [(1, &[("b", 7.0), ("c", 1.0)]), (2, &[("b", 8.0)]), (3, &[("c", 5.0)]), (60, &[("c", 9.0)])];
    let (first, later) = sent.split_at(3);
    let roll_up = async |device: &str| {
        if let Some(rollups) = store.rollups() {
            in_the_end(async || rollups.roll_up(&[(device.into(), HOUR)]).await.remove(0)).await;
        }
    };
    for (device, is_rolled_up) in [("joined:open", false), ("joined:closed", true)] {
        write(store, &write_of(device, HOUR, first)).await;
        if is_rolled_up {
            roll_up(device).await;
        }
    }
    let expected = |sent: &[Sent<'_>]| {
        let mut expected = fold(HOUR, &model_of(sent));
        expected.insert("a".to_owned(), moved["a"]);
        expected
    };
    let devices = ["joined:open", "joined:closed"];
    let stats = async |device: &str| by_name(&hour_stats(store, device, only(HOUR), &SeriesFilter::ALL).await[0].stats);
    for device in devices {
        let span = (HOUR.instant_ms(10), HOUR.instant_ms(50));
        let entry = DeviceSummary::of_hour(device.into(), HOUR, span, ["a".into(), "b".into()]);
        for _ in 0..2 {
            store.add_expired(&entry, &moved_hours).await.unwrap();
            assert_eq!(stats(device).await, expected(first), "{device}");
        }
    }
    for device in devices {
        write(store, &write_of(device, HOUR, later)).await;
        roll_up(device).await;
        assert_eq!(stats(device).await, expected(&sent), "{device}, with a later reading");
    }
}

pub(in crate::store) async fn silent_devices_are_counted_by_their_last_reading(store: &dyn Store) {
    for (device, hours) in [("s1", &[0, 30][..]), ("s2", &[-3]), ("s3", &[5]), ("s4", &[1, 2, 3])] {
        for nth in hours {
            write(store, &write_of(device, hour(*nth), &[(7, VALUE), (9, VALUE)])).await;
        }
    }
    let silent_since = async |since_ms, active: &[&str]| {
        let mut set = DeviceSet::default();
        for device in active {
            set.insert(device);
        }
        store.count_silent(since_ms, set).await.unwrap()
    };
    for (since, silent) in [(-4, 0), (-3, 0), (-2, 1), (3, 1), (4, 2), (6, 3), (30, 3), (31, 4)] {
        assert_eq!(silent_since(hour(since).start_ms(), &[]).await, silent, "{since}");
    }
    let last = hour(5).instant_ms(9);
    assert_eq!((silent_since(last, &[]).await, silent_since(last + 1, &[]).await), (2, 3), "to the millisecond");
    assert_eq!(silent_since(last + 1, &["s2", "s3", "s1", "not stored"]).await, 1, "s4");
}
