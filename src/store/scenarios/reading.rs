//! Scenarios of reading: ranges, limits, and the list of devices.

use super::*;

const VALUE: &[(&str, f64)] = &[("a", 1.5)];

fn hour(nth: i32) -> Hour {
    Hour(HOUR.0 + nth)
}

/// Writes five readings into each of the hours 0, 1 and 3.
async fn write_hours(store: &dyn Store, device: &str) {
    let readings: Vec<Sent<'_>> = (0..5).map(|at| (at * 1000, VALUE)).collect();
    let writes: Vec<_> = [3, 0, 1].iter().map(|&nth| write_of(device, hour(nth), &readings)).collect();
    for outcome in store.write(&writes).await {
        assert_eq!(outcome.unwrap(), written(5, 0));
    }
}

async fn hours_with_contents(store: &dyn Store, device: &str, hours: Range<Hour>, max_readings: usize) -> Vec<i32> {
    let found = store.contents(device, hours, max_readings).await.unwrap();
    assert!(found.iter().all(|(_, contents)| contents.reading_count() == 5), "whole hours");
    found.iter().map(|(hour, _)| hour.0 - HOUR.0).collect()
}

pub(in crate::store) async fn ranges_include_their_start_and_exclude_their_end(store: &dyn Store) {
    write_hours(store, "ranges").await;
    for (from, to, expected) in [
        (0, 4, vec![0, 1, 3]),
        (-100, 100, vec![0, 1, 3]),
        (0, 3, vec![0, 1]),
        (1, 4, vec![1, 3]),
        (2, 3, vec![]),
        (1, 1, vec![]),
        (4, 100, vec![]),
    ] {
        let range = hour(from)..hour(to);
        let stats = hour_stats(store, "ranges", range.clone(), &[]).await;
        let stats: Vec<i32> = stats.iter().map(|stats| stats.hour.0 - HOUR.0).collect();
        assert_eq!(stats, expected, "stats of {from}..{to}");
        assert_eq!(hours_with_contents(store, "ranges", range, usize::MAX).await, expected, "contents of {from}..{to}");
    }
}

pub(in crate::store) async fn contents_stop_after_the_hour_that_reaches_the_limit(store: &dyn Store) {
    write_hours(store, "limits").await;
    for (max_readings, expected) in
        [(1, vec![0]), (5, vec![0]), (6, vec![0, 1]), (10, vec![0, 1]), (11, vec![0, 1, 3]), (100, vec![0, 1, 3])]
    {
        let found = hours_with_contents(store, "limits", hour(0)..hour(9), max_readings).await;
        assert_eq!(found, expected, "at most {max_readings}");
    }
    assert_eq!(hours_with_contents(store, "limits", hour(1)..hour(9), 1).await, [1]);
}

pub(in crate::store) async fn stats_of_several_devices_come_in_the_order_asked_for(store: &dyn Store) {
    let at = |device: &str, nth: i32, values| write_of(device, hour(nth), &[(nth.unsigned_abs(), values)]);
    let of_b: &[(&str, f64)] = &[("a", 7.0), ("b", 8.0)];
    let writes = [
        at("several:b", 0, of_b),
        at("several:a", 1, VALUE),
        at("several:b", 2, of_b),
        at("several:c", 0, VALUE),
        at("several:d", 0, VALUE),
    ];
    for outcome in store.write(&writes).await {
        assert_eq!(outcome.unwrap(), written(1, 0));
    }
    let asked = ["several:c", "nobody", "several:b", "several:a"].map(Arc::from);
    let found = store.hour_stats(&asked, hour(0)..hour(2), &["a".into()]).await.unwrap();
    let stats = |nth: i32, value| HourStats {
        hour: hour(nth),
        last_ts_ms: hour(nth).instant_ms(nth.unsigned_abs()),
        stats: vec![("a".into(), Stats::of(value))],
    };
    assert_eq!(found, [vec![stats(0, 1.5)], vec![], vec![stats(0, 7.0)], vec![stats(1, 1.5)]]);
    assert!(store.hour_stats(&[], hour(0)..hour(2), &[]).await.unwrap().is_empty());
}

pub(in crate::store) async fn stats_are_of_the_metrics_asked_for(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(1, &[("a", 1.0), ("b.c", 2.0), ("d", 3.0)]), (2, &[("a", 5.0)])];
    write(store, &write_of("asked", HOUR, readings)).await;
    let fold = fold(&model_of(readings));
    for asked in [vec!["a"], vec!["b.c"], vec!["d", "a"], vec!["a", "b.c", "d"], vec!["a", "unknown"]] {
        let metrics: Vec<Metric> = asked.iter().map(|&name| name.into()).collect();
        let found = hour_stats(store, "asked", only(HOUR), &metrics).await;
        let expected = fold.iter().filter(|(name, _)| asked.contains(&name.as_str()));
        let expected = expected.map(|(name, stats)| (name.clone(), *stats)).collect();
        assert_eq!(by_name(&found[0].stats), expected, "{asked:?}");
    }
}

pub(in crate::store) async fn an_hour_without_the_metrics_asked_for_is_still_there(store: &dyn Store) {
    write(store, &write_of("not-asked", hour(0), &[(1, &[("a", 1.0)])])).await;
    write(store, &write_of("not-asked", hour(1), &[(1, &[("b", 1.0)]), (9, &[("c", 1.0)])])).await;
    let found = hour_stats(store, "not-asked", hour(0)..hour(2), &["a".into()]).await;
    assert_eq!(found.len(), 2);
    assert_eq!(by_name(&found[0].stats).len(), 1);
    assert_eq!((found[1].hour, found[1].last_ts_ms), (hour(1), hour(1).instant_ms(9)));
    assert!(found[1].stats.is_empty());
}

pub(in crate::store) async fn an_unknown_device_has_nothing(store: &dyn Store) {
    let all = hour(-1000)..hour(1000);
    assert!(hour_stats(store, "nobody", all.clone(), &[]).await.is_empty());
    assert!(store.contents("nobody", all, usize::MAX).await.unwrap().is_empty());
    assert_eq!(store.last_hour("nobody").await.unwrap(), None);
    assert!(store.devices("nobody", None, 10).await.unwrap().is_empty());
}

pub(in crate::store) async fn the_last_hour_is_the_newest_not_the_last_written(store: &dyn Store) {
    for nth in [0, 5, 3] {
        write(store, &write_of("last-hour", hour(nth), &[(1, VALUE)])).await;
    }
    assert_eq!(store.last_hour("last-hour").await.unwrap(), Some(hour(5)));
}

pub(in crate::store) async fn a_device_is_summed_up_by_its_first_and_newest_hour(store: &dyn Store) {
    let newest: &[Sent<'_>] = &[(7, &[("z", 1.0), ("b.c", 1.0)]), (9, &[("Z", 1.0)])];
    write(store, &with_metadata(write_of("summary", hour(3), newest), r#"{"floor":2}"#)).await;
    write(store, &write_of("summary", hour(0), &[(4, &[("old", 1.0)]), (5, &[("old", 1.0)])])).await;
    write(store, &write_of("summary", hour(1), &[(1, &[("older", 1.0)])])).await;
    let devices = store.devices("summary", None, 10).await.unwrap();
    assert_eq!(devices.len(), 1);
    let device = &devices[0];
    assert_eq!(&*device.device, "summary");
    assert_eq!(device.metrics, ["Z", "b.c", "z"].map(Metric::from));
    assert_eq!((device.first_ts_ms, device.last_ts_ms), (hour(0).instant_ms(4), hour(3).instant_ms(9)));
    let metadata: serde_json::Value = serde_json::from_str(device.metadata.as_deref().unwrap()).unwrap();
    assert_eq!(metadata, serde_json::json!({ "floor": 2 }));
}

async fn names(store: &dyn Store, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let devices = store.devices(prefix, after, limit).await.unwrap();
    devices.iter().map(|device| device.device.to_string()).collect()
}

pub(in crate::store) async fn devices_are_found_by_literal_prefix(store: &dyn Store) {
    let devices = ["prefix_a", "prefixXa", "prefix.a", "prefix.", "prefix/a", "PREFIX_a", "prefi", "prefix_a:1"];
    let writes: Vec<_> = devices.iter().map(|device| write_of(device, HOUR, &[(1, VALUE)])).collect();
    for outcome in store.write(&writes).await {
        assert_eq!(outcome.unwrap(), written(1, 0));
    }
    assert_eq!(names(store, "prefix_", None, 100).await, ["prefix_a", "prefix_a:1"]);
    assert_eq!(names(store, "prefix.", None, 100).await, ["prefix.", "prefix.a"]);
    assert_eq!(names(store, "prefix_a:1", None, 100).await, ["prefix_a:1"]);
    for pattern in ["prefix%", "prefix.*", "^prefix", "prefix[_]", "prefix*", "prefix\\_", "prefix_a\0", "prefixé"] {
        assert!(names(store, pattern, None, 100).await.is_empty(), "{pattern:?}");
    }
    assert_eq!(
        names(store, "prefix", None, 100).await,
        ["prefix.", "prefix.a", "prefix/a", "prefixXa", "prefix_a", "prefix_a:1"]
    );
}

pub(in crate::store) async fn devices_are_paged_in_bytewise_order(store: &dyn Store) {
    let sorted = ["page:-", "page:.", "page:1", "page:10", "page:2", "page:A", "page:Z", "page:_", "page:a", "page:b"];
    // some with several hours, which must not come twice
    let writes = sorted.iter().rev().enumerate().flat_map(|(nth, device)| {
        (0..=i32::try_from(nth).unwrap() % 3).map(|at| write_of(device, hour(at), &[(1, VALUE)]))
    });
    for outcome in store.write(&writes.collect::<Vec<_>>()).await {
        assert_eq!(outcome.unwrap(), written(1, 0));
    }
    for limit in [1, 3, 10, 11] {
        let mut found: Vec<String> = Vec::new();
        loop {
            let page = names(store, "page:", found.last().map(String::as_str), limit).await;
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        assert_eq!(found, sorted, "pages of {limit}");
    }
    assert_eq!(names(store, "page:", Some("page:B"), 2).await, ["page:Z", "page:_"], "after one that is not there");
    assert_eq!(names(store, "page:", Some("a"), 1).await, ["page:-"], "after one before the prefix");
    assert!(names(store, "page:", Some("z"), 1).await.is_empty(), "after one behind the prefix");
}

pub(in crate::store) async fn the_store_answers_a_ping(store: &dyn Store) {
    in_the_end(async || store.ping().await).await; // one has two seconds, and may be the first to connect
}
