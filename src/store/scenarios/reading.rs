//! Scenarios of reading: ranges, limits, and the order of devices.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::model::Day;
use crate::store::{FirstReadings, ReadingsQuery, recent_hours};

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

async fn hours_with_contents(store: &dyn Store, device: &str, hours: Range<Hour>) -> Vec<i32> {
    let found = store.contents(device, hours).await.unwrap();
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
        let stats = hour_stats(store, "ranges", range.clone(), &SeriesFilter::ALL).await;
        let stats: Vec<i32> = stats.iter().map(|stats| stats.hour.0 - HOUR.0).collect();
        assert_eq!(stats, expected, "stats of {from}..{to}");
        assert_eq!(hours_with_contents(store, "ranges", range).await, expected, "contents of {from}..{to}");
    }
}

/// The database has no reading after 2038: MongoDB searches times in another way then.
pub(in crate::store) async fn ranges_that_end_in_any_year_have_all_readings(store: &dyn Store) {
    write_hours(store, "far").await;
    // 2038 and 2106, when seconds leave 31 and 32 bits, 2110, 2242, and the end of the year 9999
    let ends = [596_523, 596_524, 1_193_046, 1_193_047, 1_193_048, 1_227_216, 2_386_093, 2_386_094, 70_389_528];
    for (start, end) in [-9, 0, HOUR.0].into_iter().flat_map(|start| ends.map(|end| (Hour(start), Hour(end)))) {
        assert_eq!(hours_with_contents(store, "far", start..end).await, [0, 1, 3], "contents of {start:?}..{end:?}");
        for series in [SeriesFilter::ALL, series_of(&["a"])] {
            let stats = hour_stats(store, "far", start..end, &series).await;
            let counts: Vec<_> = stats.iter().map(|stats| (stats.hour.0 - HOUR.0, stats.stats[0].1.count)).collect();
            assert_eq!(counts, [(0, 5), (1, 5), (3, 5)], "stats of {start:?}..{end:?}");
            let query = ReadingsQuery { series, max_instants: 4, ..ReadingsQuery::all("far", &(start..end)) };
            let first = store.readings(&query).await.unwrap();
            assert_eq!(first.hours[0].1.reading_count(), 4, "readings of {start:?}..{end:?}");
        }
    }
    let readings: Vec<Sent<'_>> = (0..5).map(|at| (at * 1000, VALUE)).collect();
    let writes = [hour(0), Hour(1_227_216)].map(|hour| write_of("far", hour, &readings));
    let outcomes: Vec<Written> = store.write(&writes).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(outcomes, [written(0, 5), written(5, 0)]);
}

/// Values by instant and metric.
type Stored = BTreeMap<(i64, String), f64>;

/// Writes random readings into three hours: late ones, resent ones, and further metrics of the same instants.
/// The identity determines the value, so that all stores keep the same one.
async fn write_waves(store: &dyn Store, device: &str, random: &mut StdRng) -> Stored {
    let mut stored = Stored::new();
    for _ in 0..12 {
        let nth = random.random_range(0..3);
        let from = random.random_range(0..20) * 1_000;
        let mut readings: Vec<(HourOffset, Vec<(&str, f64)>)> = Vec::new();
        for at in 0..random.random_range(1..6) {
            let offset = if random.random_range(0..8) == 0 { 3_599_999 } else { from + at * 1_000 };
            let metrics = &["a", "b.c", "d"][random.random_range(0..3)..];
            let value = |metric: &str| f64::from(offset % 97) + metric.len() as f64 / 4.0;
            stored.extend(
                metrics.iter().map(|&metric| ((hour(nth).instant_ms(offset), metric.to_owned()), value(metric))),
            );
            readings.push((offset, metrics.iter().map(|&metric| (metric, value(metric))).collect()));
        }
        let readings: Vec<Sent<'_>> = readings.iter().map(|(offset, values)| (*offset, values.as_slice())).collect();
        write(store, &write_of(device, hour(nth), &readings)).await;
    }
    stored
}

fn stored_in(hours: &[(Hour, Contents)]) -> Stored {
    assert!(hours.is_sorted_by(|one, next| one.0 < next.0), "hours ascend");
    let mut stored = Stored::new();
    for (hour, contents) in hours {
        assert!(!contents.is_empty(), "an hour without readings");
        for sample in contents.samples() {
            let identity = (hour.instant_ms(sample.offset), contents.metric_of(sample).to_string());
            assert!(stored.insert(identity, sample.value).is_none(), "an identity twice");
        }
    }
    stored
}

fn count_instants(stored: &Stored) -> usize {
    stored.keys().map(|(ts_ms, _)| ts_ms).collect::<BTreeSet<_>>().len()
}

/// Queries page by page, and compares each answer with the written readings.
async fn follow(store: &dyn Store, query: &ReadingsQuery, model: &Stored) {
    let mut query = query.clone();
    let model: Stored =
        model.iter().filter(|((_, metric), _)| query.series.matches(metric)).map(|(k, v)| (k.clone(), *v)).collect();
    while query.range_ms.start < query.range_ms.end {
        let FirstReadings { hours, complete_until_ms } = store.readings(&query).await.unwrap();
        let Range { start, end } = query.range_ms;
        assert!(start < complete_until_ms && complete_until_ms <= end, "{query:?} until {complete_until_ms}");
        let found = stored_in(&hours);
        let of_model = model.range((start, String::new())..(complete_until_ms, String::new()));
        let expected: Stored = of_model.map(|(identity, value)| (identity.clone(), *value)).collect();
        assert_eq!(found, expected, "{query:?} until {complete_until_ms}");
        let instants = count_instants(&found);
        assert!(instants <= query.max_instants, "{query:?}: {instants} instants");
        let before_last = found.len().saturating_sub(3); // the last instant, with up to three metrics, is whole
        assert!(before_last < query.max_values, "{query:?}: {} values", found.len());
        assert!(complete_until_ms == end || instants > 0, "{query:?} stops at {complete_until_ms} without a reason");
        query.range_ms.start = complete_until_ms;
    }
}

pub(in crate::store) async fn pages_of_any_size_give_each_reading_once(store: &dyn Store) {
    for seed in seeds(1) {
        let device = format!("pages-{seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let model = write_waves(store, &device, &mut random).await;
        let all = count_instants(&model);
        for max_instants in 1..=all + 2 {
            for metrics in [&[][..], &["b.c"], &["d", "a", "d"], &["nosuch"], &["nosuch", "b.c"]] {
                let mut instant = |nth| hour(nth).instant_ms(random.random_range(0..30_000));
                let (from, to) = (instant(0), instant(2));
                for range_ms in [hour(-1).start_ms()..hour(9).end_ms(), from..to, from..from + 1] {
                    let series = series_of(metrics);
                    let max_values = if max_instants % 3 == 0 { max_instants } else { usize::MAX };
                    let device = device.as_str().into();
                    let query = ReadingsQuery { device, range_ms, series, max_instants, max_values };
                    follow(store, &query, &model).await;
                }
            }
        }
    }
}

pub(in crate::store) async fn the_latest_of_an_hour_is_the_last_value_of_each_metric(store: &dyn Store) {
    let model = write_waves(store, "latest", &mut StdRng::seed_from_u64(7)).await;
    for nth in 0..4 {
        let of_hour = model.range((hour(nth).start_ms(), String::new())..(hour(nth).end_ms(), String::new()));
        let mut last: BTreeMap<String, (i64, f64)> = BTreeMap::new();
        for ((ts_ms, metric), value) in of_hour {
            last.insert(metric.clone(), (*ts_ms, *value));
        }
        let expected: Stored = last.into_iter().map(|(metric, (ts_ms, value))| ((ts_ms, metric), value)).collect();
        let found = store.latest("latest", hour(nth)).await.unwrap();
        let found = if found.is_empty() { Vec::new() } else { vec![(hour(nth), found)] };
        assert_eq!(stored_in(&found), expected, "hour {nth}");
    }
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
    let found = store.hour_stats(&asked, hour(0)..hour(2), &series_of(&["a"]), StatsNeeds::All).await.unwrap();
    let stats = |nth: i32, value| HourStats {
        hour: hour(nth),
        last_ts_ms: hour(nth).instant_ms(nth.unsigned_abs()),
        stats: vec![("a".into(), Stats::of(hour(nth).instant_ms(nth.unsigned_abs()), value))],
    };
    assert_eq!(found, [vec![stats(0, 1.5)], vec![], vec![stats(0, 7.0)], vec![stats(1, 1.5)]]);
    assert!(store.hour_stats(&[], hour(0)..hour(2), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap().is_empty());
}

/// Hours have many parts where the store splits them, and each instance knows some of them.
pub(in crate::store) async fn stats_of_recent_hours_are_those_of_all(store: &dyn Store, other: &dyn Store) {
    let stores = [store, other];
    let buckets =
        [("one", 0, 1), ("many", -1, 40), ("many", 0, 45), ("late", -1, 9), ("next", 1, 14), ("later", 3, 30)];
    for (device, nth, readings) in buckets.into_iter().chain([("later", 700, 2), ("many", 2, 1)]) {
        let readings: Vec<Sent<'_>> = (0..readings).map(|at| (at * 1000, VALUE)).collect();
        for (some, store) in readings.chunks(6).zip(stores.into_iter().cycle()) {
            assert_eq!(write(store, &write_of(device, hour(nth), some)).await.duplicate, 0);
        }
    }
    let devices: Vec<Arc<str>> = ["later", "many", "none", "one", "next", "late"].map(Arc::from).to_vec();
    for hours in recent_hours(hour(0)).into_iter().chain([hour(4)..Hour(i32::MAX), hour(1)..hour(1)]) {
        for store in stores {
            let all = store.hour_stats(&devices, hours.clone(), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap();
            assert_eq!(store.recent_stats(&devices, hours.clone()).await.unwrap(), all, "{hours:?}");
        }
    }
    let (wanted, day) = (BTreeSet::from(["a".into()]), Day::of(HOUR).hours());
    let of = vec![&wanted; devices.len()];
    for rolled_up in [&[][..], &["many", "late"]] {
        if let Some(rollups) = store.rollups() {
            let buckets: Vec<_> = rolled_up.iter().map(|device| (Arc::from(*device), hour(-1))).collect();
            assert!(rollups.roll_up(&buckets).await.iter().all(Result::is_ok));
        }
        let all = store.hour_stats(&devices, day.clone(), &series_of(&["a"]), StatsNeeds::All).await.unwrap();
        let last = store.last_stats(&devices, &of, day.clone()).await.unwrap();
        let lasts = |of: &[Vec<HourStats>]| of.iter().map(|hours| hours.last().cloned()).collect::<Vec<_>>();
        assert_eq!(lasts(&last), lasts(&all), "{rolled_up:?} have a rollup");
    }
}

pub(in crate::store) async fn stats_are_of_the_metrics_asked_for(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(1, &[("a", 1.0), ("b.c", 2.0), ("d", 3.0)]), (2, &[("a", 5.0)])];
    write(store, &write_of("asked", HOUR, readings)).await;
    let fold = fold(HOUR, &model_of(readings));
    for asked in [vec!["a"], vec!["b.c"], vec!["d", "a"], vec!["a", "b.c", "d"], vec!["a", "unknown"]] {
        let found = hour_stats(store, "asked", only(HOUR), &series_of(&asked)).await;
        let expected = fold.iter().filter(|(name, _)| asked.contains(&name.as_str()));
        let expected = expected.map(|(name, stats)| (name.clone(), *stats)).collect();
        assert_eq!(by_name(&found[0].stats), expected, "{asked:?}");
    }
}

/// Labels by key.
type Labels<'a> = &'a [(&'a str, &'a str)];

/// Series of metrics whose names begin alike, with labels that need every escape.
const LABELLED: [&str; 10] = [
    "cpu",
    "cpu{core=0}",
    "cpu{core=0,host=a.b}",
    "cpu{core=1,host=a.b}",
    "cpu_idle",
    "cpu_idle{core=0}",
    "cpu.idle{core=0}",
    r"disk{path=C:\\$x}",
    r"disk{path=\{a\,b\=c\}}",
    "~",
];

pub(in crate::store) async fn series_are_selected_by_name_text_and_label(store: &dyn Store) {
    let mut random = StdRng::seed_from_u64(11);
    let mut model = Stored::new();
    for nth in (0..2).chain(0..2) {
        let mut readings: BTreeMap<HourOffset, Vec<(&str, f64)>> = BTreeMap::new();
        for _ in 0..40 {
            let (offset, series) =
                (random.random_range(0..9) * 1_000, LABELLED[random.random_range(0..LABELLED.len())]);
            let value = f64::from(offset) + series.len() as f64 / 4.0;
            model.insert((hour(nth).instant_ms(offset), series.to_owned()), value);
            readings.entry(offset).or_default().push((series, value));
        }
        for values in readings.values_mut() {
            values.sort_by(|one, other| one.0.cmp(other.0));
            values.dedup();
        }
        let readings: Vec<Sent<'_>> = readings.iter().map(|(offset, values)| (*offset, values.as_slice())).collect();
        write(store, &write_of("labelled", hour(nth), &readings)).await;
    }
    let many: Vec<String> = (0..20).map(|nth| format!("cpu{nth}")).chain(["cpu".to_owned()]).collect();
    let many: Vec<&str> = many.iter().map(|name| &**name).collect();
    let filters: [(&[&str], Labels<'_>); 14] = [
        (&[], &[]),
        (&["cpu"], &[]),
        (&["cpu{core=0}"], &[]),
        (&["cpu{host=a.b,core=0}"], &[]),
        (&["cpu", "cpu{core=0}", "cpu_idle"], &[]),
        (&["cpu.idle", r"disk{path=C:\\$x}"], &[]),
        (&["disk"], &[("path", "{a,b=c}")]),
        (&["cpu"], &[("core", "0")]),
        (&["cpu"], &[("core", "0"), ("core", "1"), ("host", "a.b")]),
        (&[], &[("core", "0")]),
        (&[], &[("path", r"C:\$x")]),
        (&["nosuch", "~"], &[]),
        (&["nosuch{core=0}", "cp"], &[]),
        (&many, &[]),
    ];
    for (metrics, labels) in filters {
        let series = SeriesFilter::new(metrics.iter().copied(), labels.iter().copied()).unwrap();
        for max_instants in [1, 3, 100] {
            let (device, range_ms) = ("labelled".into(), hour(0).start_ms()..hour(2).start_ms());
            let query =
                ReadingsQuery { device, range_ms, series: series.clone(), max_instants, max_values: usize::MAX };
            follow(store, &query, &model).await;
        }
        let found = hour_stats(store, "labelled", hour(0)..hour(2), &series).await;
        assert_eq!(found.len(), 2, "{metrics:?} {labels:?}");
        for stats in found {
            let of_hour = |ts_ms: i64| Hour::of(ts_ms) == stats.hour;
            let of_hour = model.iter().filter(|((ts_ms, name), _)| of_hour(*ts_ms) && series.matches(name));
            let of_hour = of_hour.map(|((ts_ms, name), value)| ((Hour::offset_of(*ts_ms), name.clone()), *value));
            assert_eq!(by_name(&stats.stats), fold(stats.hour, &of_hour.collect()), "{metrics:?} {labels:?}");
        }
    }
}

pub(in crate::store) async fn an_hour_without_the_metrics_asked_for_is_still_there(store: &dyn Store) {
    write(store, &write_of("not-asked", hour(0), &[(1, &[("a", 1.0)])])).await;
    write(store, &write_of("not-asked", hour(1), &[(1, &[("b", 1.0)]), (9, &[("c", 1.0)])])).await;
    let found = hour_stats(store, "not-asked", hour(0)..hour(2), &series_of(&["a"])).await;
    assert_eq!(found.len(), 2);
    assert_eq!(by_name(&found[0].stats).len(), 1);
    assert_eq!((found[1].hour, found[1].last_ts_ms), (hour(1), hour(1).instant_ms(9)));
    assert!(found[1].stats.is_empty());
}

pub(in crate::store) async fn an_unknown_device_has_nothing(store: &dyn Store) {
    let all = hour(-1000)..hour(1000);
    assert!(hour_stats(store, "nobody", all.clone(), &SeriesFilter::ALL).await.is_empty());
    assert!(store.contents("nobody", all).await.unwrap().is_empty());
    assert_eq!(store.last_hour("nobody").await.unwrap(), None);
    assert_eq!(store.device("nobody").await.unwrap(), None);
    assert!(store.devices("nobody", None, 10).await.unwrap().devices.is_empty());
}

pub(in crate::store) async fn the_last_hour_is_the_newest_not_the_last_written(store: &dyn Store) {
    for nth in [0, 5, 3] {
        write(store, &write_of("last-hour", hour(nth), &[(1, VALUE)])).await;
    }
    assert_eq!(store.last_hour("last-hour").await.unwrap(), Some(hour(5)));
}

async fn names(store: &dyn Store, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let list = store.devices(prefix, after, limit).await.unwrap();
    list.devices.iter().map(|device| device.device.to_string()).collect()
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
    // some have several hours, and must still be listed once
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

pub(in crate::store) async fn devices_whose_ids_look_like_documents_of_others_stay_apart(store: &dyn Store) {
    let sorted = [
        "nest/a",
        "nest/a-",
        "nest/a-b",
        "nest/a.b",
        "nest/a/",
        "nest/a/1",
        "nest/a/2026-04-20",
        "nest/a/2026-04-20/1",
        "nest/a/2026-04-20T14",
        "nest/a/2026-04-20T14/1",
        "nest/a/2026-04-20T14/2026-04-20T14",
        "nest/a/9",
        "nest/a0",
        "nest/b/9",
    ];
    let readings: Vec<Sent<'_>> = (0..13).map(|at| (at * 1000, VALUE)).collect(); // of several parts
    let of = |device| [0, 1, 3].map(|nth| write_of(device, hour(nth), &readings));
    for outcome in store.write(&sorted.iter().flat_map(|device| of(device)).collect::<Vec<_>>()).await {
        assert_eq!(outcome.unwrap(), written(13, 0));
    }
    let devices: Vec<Arc<str>> = sorted.iter().map(|&device| device.into()).collect();
    for device in &devices {
        for nth in [0, 1, 3] {
            expect(store, device, hour(nth), &model_of(&readings)).await;
        }
        assert_eq!(store.contents(device, hour(0)..hour(3)).await.unwrap().len(), 2, "{device}");
        assert_eq!(store.last_hour(device).await.unwrap(), Some(hour(3)), "{device}");
        let summary = store.device(device).await.unwrap().expect("it is stored");
        let span = (hour(0).instant_ms(0), hour(3).instant_ms(12_000));
        assert_eq!((summary.first_ts_ms, summary.last_ts_ms), span, "{device}");
    }
    let found = store.hour_stats(&devices, hour(1)..hour(9), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap();
    for hours in found {
        assert_eq!(
            hours.iter().map(|stats| (stats.hour, stats.stats[0].1.count)).collect::<Vec<_>>(),
            [(hour(1), 13), (hour(3), 13)]
        );
    }
    for limit in [1, 100] {
        let mut found: Vec<String> = Vec::new();
        while let page = names(store, "nest/", found.last().map(String::as_str), limit).await
            && !page.is_empty()
        {
            found.extend(page);
        }
        assert_eq!(found, sorted, "pages of {limit}");
    }
    assert_eq!(names(store, "nest/a/2026-04-20T", None, 2).await, sorted[8..10]);
    assert_eq!(store.last_hour("nest").await.unwrap(), None);
    assert_eq!(store.last_hour("nest/b").await.unwrap(), None);
}

pub(in crate::store) async fn the_store_answers_a_ping(store: &dyn Store) {
    in_the_end(async || store.ping().await).await; // a ping has two seconds, and the first one connects
}
