//! Scenarios of writing: readings are stored once, stats are their fold, and all accepted readings are
//! counted.
//!
//! Values are small multiples of a quarter, so that sums are exact in any order.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

pub(in crate::store) async fn written_once_is_stored_once(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(0, &[("lux", 320.0)]), (10_000, &[("lux", 310.5)]), (20_000, &[("lux", 322.0)])];
    assert_eq!(write(store, &write_of("once", HOUR, readings)).await, written(3, 0));
    expect(store, "once", HOUR, &model_of(readings)).await;
}

pub(in crate::store) async fn a_write_that_is_resent_whole_changes_nothing(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(5, &[("a", 1.0), ("b", 2.0)]), (7, &[("a", 3.0)])];
    let sent = write_of("resent-whole", HOUR, readings);
    assert_eq!(write(store, &sent).await, written(2, 0));
    for _ in 0..3 {
        assert_eq!(write(store, &sent).await, written(0, 2));
        expect(store, "resent-whole", HOUR, &model_of(readings)).await;
    }
}

pub(in crate::store) async fn a_write_that_is_resent_in_part_adds_only_what_is_new(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(1, &[("a", 1.0)]), (2, &[("a", 2.0)]), (3, &[("a", 3.0)]), (4, &[("a", 4.0)])];
    assert_eq!(write(store, &write_of("resent-part", HOUR, &readings[..3])).await, written(3, 0));
    assert_eq!(write(store, &write_of("resent-part", HOUR, &readings[1..])).await, written(1, 2));
    expect(store, "resent-part", HOUR, &model_of(readings)).await;
}

pub(in crate::store) async fn late_readings_are_stored_before_and_between(store: &dyn Store) {
    let readings: &[Sent<'_>] =
        &[(100, &[("a", 5.0)]), (300, &[("a", 7.0)]), (50, &[("a", -9.0)]), (200, &[("a", 50.0)])];
    assert_eq!(write(store, &write_of("late", HOUR, &readings[..2])).await, written(2, 0));
    assert_eq!(write(store, &write_of("late", HOUR, &readings[2..3])).await, written(1, 0));
    assert_eq!(write(store, &write_of("late", HOUR, &readings[3..])).await, written(1, 0));
    expect(store, "late", HOUR, &model_of(readings)).await;
    let device = store.device("late").await.unwrap().unwrap();
    assert_eq!((device.first_ts_ms, device.last_ts_ms), (HOUR.instant_ms(50), HOUR.instant_ms(300)));
}

pub(in crate::store) async fn readings_out_of_order_in_one_write_are_sorted(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(30, &[("b", 3.0), ("a", 4.0)]), (10, &[("a", 1.0)]), (20, &[("b", 2.0)])];
    assert_eq!(write(store, &write_of("unordered", HOUR, readings)).await, written(3, 0));
    expect(store, "unordered", HOUR, &model_of(readings)).await;
    let later: &[Sent<'_>] = &[(60, &[("a", 6.0)]), (50, &[("a", 5.0)])];
    assert_eq!(write(store, &write_of("unordered", HOUR, later)).await, written(2, 0));
    expect(store, "unordered", HOUR, &model_of(&[readings, later].concat())).await;
    let contents = store.contents("unordered", only(HOUR)).await.unwrap();
    assert!(contents[0].1.readings().map(|reading| reading.offset).eq([10, 20, 30, 50, 60]));
}

pub(in crate::store) async fn of_one_identity_in_one_write_the_last_value_stays(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(1, &[("a", 9.0)]), (2, &[("a", 2.0)]), (1, &[("a", 1.0)])];
    assert_eq!(write(store, &write_of("twice-in-one", HOUR, readings)).await, written(2, 1));
    expect(store, "twice-in-one", HOUR, &model_of(readings)).await;
}

/// A changed value is no new identity: its reading is a duplicate, as within one write.
pub(in crate::store) async fn of_one_identity_across_writes_the_last_value_stays(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(1, &[("a", 9.0)]), (2, &[("a", 2.0)]), (1, &[("a", 1.0)]), (2, &[("a", 3.0)])];
    assert_eq!(write(store, &write_of("twice", HOUR, &readings[..2])).await, written(2, 0));
    assert_eq!(write(store, &write_of("twice", HOUR, &readings[2..3])).await, written(0, 1));
    expect(store, "twice", HOUR, &model_of(&readings[..3])).await;
    assert_eq!(write(store, &write_of("twice", HOUR, &readings[3..])).await, written(0, 1));
    expect(store, "twice", HOUR, &model_of(readings)).await;
}

pub(in crate::store) async fn of_one_identity_across_writes_the_first_value_stays(store: &dyn Store) {
    let first: &[Sent<'_>] = &[(1, &[("a", 9.0)]), (2, &[("a", 2.0)])];
    assert_eq!(write(store, &write_of("twice", HOUR, first)).await, written(2, 0));
    let others: &[Sent<'_>] = &[(1, &[("a", 1.0)]), (2, &[("a", 3.0)])];
    for other in others.chunks(1).chain([others]) {
        let count = u32::try_from(other.len()).unwrap();
        assert_eq!(write(store, &write_of("twice", HOUR, other)).await, written(0, count));
        expect(store, "twice", HOUR, &model_of(first)).await;
    }
}

/// Such a write comes from a command that copies readings from another store while devices send.
pub(in crate::store) async fn a_write_that_keeps_the_first_value_changes_none(store: &dyn Store) {
    let stored: &[Sent<'_>] = &[(1, &[("a", 9.0)]), (2, &[("a", 2.0)])];
    assert_eq!(write(store, &write_of("keeping", HOUR, stored)).await, written(2, 0));
    let mut other = write_of("keeping", HOUR, &[(1, &[("a", 1.0), ("b", 5.0)]), (3, &[("a", 3.0)])]);
    let contents = other.contents.clone().with_keep(Keep::First);
    Arc::make_mut(&mut other).contents = contents;
    let both: &[Sent<'_>] = &[(1, &[("a", 9.0), ("b", 5.0)]), (2, &[("a", 2.0)]), (3, &[("a", 3.0)])];
    for expected in [written(2, 0), written(0, 2)] {
        assert_eq!(write(store, &other).await, expected);
        expect(store, "keeping", HOUR, &model_of(both)).await;
    }
}

pub(in crate::store) async fn a_second_metric_at_the_same_instant_counts_as_stored(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(1, &[("temp", 20.5)]), (1, &[("hum", 40.0)])];
    assert_eq!(write(store, &write_of("second-metric", HOUR, &readings[..1])).await, written(1, 0));
    assert_eq!(write(store, &write_of("second-metric", HOUR, &readings[1..])).await, written(1, 0));
    expect(store, "second-metric", HOUR, &model_of(readings)).await;
    assert_eq!(write(store, &write_of("second-metric", HOUR, readings)).await, written(0, 2));
}

pub(in crate::store) async fn readings_of_different_metrics_share_a_bucket(store: &dyn Store) {
    let first: &[Sent<'_>] = &[(1, &[("a", 1.0)]), (2, &[("b", 2.0), ("c", 3.0)]), (3, &[("a", 4.0), ("c", 5.0)])];
    let later: &[Sent<'_>] = &[(4, &[("d", 6.0)]), (5, &[("c", 7.0), ("a", 8.0)])];
    let late: &[Sent<'_>] = &[(2, &[("e", 9.0)]), (0, &[("b", 10.0)])];
    for (readings, count) in [(first, 3), (later, 2), (late, 2)] {
        assert_eq!(write(store, &write_of("mixed", HOUR, readings)).await, written(count, 0));
    }
    expect(store, "mixed", HOUR, &model_of(&[first, later, late].concat())).await;
}

pub(in crate::store) async fn a_reading_that_is_partly_new_counts_as_stored(store: &dyn Store) {
    let first: &[Sent<'_>] = &[(1, &[("a", 1.0)]), (2, &[("a", 2.0)])];
    let second: &[Sent<'_>] = &[(1, &[("a", 1.0), ("b", 5.0)]), (2, &[("a", 2.0)]), (3, &[("a", 3.0)])];
    assert_eq!(write(store, &write_of("partly-new", HOUR, first)).await, written(2, 0));
    assert_eq!(write(store, &write_of("partly-new", HOUR, second)).await, written(2, 1));
    expect(store, "partly-new", HOUR, &model_of(&[first, second].concat())).await;
}

pub(in crate::store) async fn hours_and_devices_do_not_touch_each_other(store: &dyn Store) {
    let places = [("apart", HOUR), ("apart", Hour(HOUR.0 + 1)), ("apart/1", HOUR), ("apar", HOUR)];
    let values = [("a", 1.0), ("a", 2.0), ("a", 3.0), ("a", 4.0)];
    let writes: Vec<_> = places
        .iter()
        .zip(&values)
        .map(|(&(device, hour), value)| write_of(device, hour, &[(1, std::slice::from_ref(value))]))
        .collect();
    for outcome in store.write(&writes).await {
        assert_eq!(outcome.unwrap(), written(1, 0));
    }
    for (&(device, hour), value) in places.iter().zip(&values) {
        expect(store, device, hour, &model_of(&[(1, std::slice::from_ref(value))])).await;
    }
}

pub(in crate::store) async fn the_edges_of_an_hour_and_hours_before_1970_are_stored(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(0, &[("a", 1.0)]), (3_599_999, &[("a", 2.0)])];
    for hour in [Hour(-1), Hour(0), HOUR] {
        assert_eq!(write(store, &write_of("edges", hour, readings)).await, written(2, 0));
        expect(store, "edges", hour, &model_of(readings)).await;
    }
    let hours = hour_stats(store, "edges", Hour(-5)..Hour(5), &SeriesFilter::ALL).await;
    assert!(hours.iter().map(|stats| stats.hour).eq([Hour(-1), Hour(0)]));
}

/// The database has no reading before 1970: MongoDB searches times in another way then.
pub(in crate::store) async fn hours_soon_after_1970_are_found_from_any_start(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(0, &[("a", 1.0)]), (1_800_000, &[("a", 2.0)]), (3_599_999, &[("a", 3.0)])];
    let hours = [Hour(0), Hour(1), Hour(30), Hour(24 * 40), Hour(400_000), HOUR]; // the last but one is in 2015
    for hour in hours {
        for expected in [written(3, 0), written(0, 3)] {
            assert_eq!(write(store, &write_of("early", hour, readings)).await, expected, "{hour:?}");
        }
        expect(store, "early", hour, &model_of(readings)).await;
        assert_eq!(samples_of(&store.latest("early", hour).await.unwrap()), model_of(&readings[2..]));
    }
    for start in [-1_000_000, -1, 0, 1, 2, 30, 31, 24 * 40 + 1] {
        let range = Hour(start)..Hour(HOUR.0 + 1);
        let expected: Vec<Hour> = hours.iter().copied().filter(|hour| *hour >= range.start).collect();
        let stats = hour_stats(store, "early", range.clone(), &SeriesFilter::ALL).await;
        assert!(stats.iter().map(|stats| stats.hour).eq(expected.iter().copied()), "stats from {start}: {stats:?}");
        assert!(stats.iter().all(|hour| hour.stats[0].1.count == 3), "{stats:?}");
        let contents = store.contents("early", range).await.unwrap();
        assert!(contents.iter().map(|(hour, _)| *hour).eq(expected), "contents from {start}");
    }
    assert!(hour_stats(store, "early", Hour(-9)..Hour(0), &SeriesFilter::ALL).await.is_empty());
    assert_eq!(store.last_hour("early").await.unwrap(), Some(HOUR));
}

/// Checks the summary of a device whose newest hour is soon after 1970.
pub(in crate::store) async fn a_device_with_readings_of_1970_only_is_summed_up(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(0, &[("a", 1.0)]), (3_599_999, &[("b", 3.0)])];
    assert_eq!(write(store, &write_of("old", Hour(0), readings)).await, written(2, 0));
    let device = store.device("old").await.unwrap().unwrap();
    assert_eq!((device.first_ts_ms, device.last_ts_ms), (0, Hour(0).end_ms() - 1));
    assert_eq!(device.series.iter().map(|series| &*series.metric).collect::<Vec<_>>(), ["a", "b"]);
}

pub(in crate::store) async fn values_and_names_come_back_exactly(store: &dyn Store) {
    let long = "m".repeat(128);
    let values = [
        ("a.b", 0.1),
        ("$load", -1e-300),
        ("Temp °C", 1e300),
        ("with space", f64::MAX),
        ("_id", f64::MIN_POSITIVE / 2.0),
        ("deviceId", 9_007_199_254_740_993.0),
        ("0", -0.0),
        (&long, 42.0),
    ];
    let readings: &[Sent<'_>] = &[(1, &values)];
    assert_eq!(write(store, &write_of("exact:names/1", HOUR, readings)).await, written(1, 0));
    expect(store, "exact:names/1", HOUR, &model_of(readings)).await;
    let late: &[Sent<'_>] = &[(0, &[("a.b", 0.2)])];
    assert_eq!(write(store, &write_of("exact:names/1", HOUR, late)).await, written(1, 0));
    expect(store, "exact:names/1", HOUR, &model_of(&[late, readings].concat())).await;
}

/// Labels with every character that has a meaning in a series, a path or an operator, and the longest texts.
/// The writes insert, append, and merge.
pub(in crate::store) async fn series_with_labels_come_back_exactly(store: &dyn Store) {
    let long = format!("m{{a={}}}", "v".repeat(SERIES_MAX_BYTES - 5));
    let dots = format!("$.{{$.={}}}", ".".repeat(SERIES_MAX_BYTES - 8));
    let first = [
        ("cpu", 1.0),
        ("cpu{core=0}", 2.0),
        (r"disk{mode=rw,path=C:\\a\{\}\,\=}", 3.0),
        ("m{$set=$inc,a.b=..}", 4.0),
        ("Temp °C{Raum=Küche 2}", 5.0),
        ("_id{_id=_id}", 6.0),
        ("meta{ts=ts}", 7.0),
        ("m{0=0,[]=$[],a[0]=.$.}", 8.0),
        (&long, 9.0),
        (&dots, 10.0),
    ];
    let again = first.map(|(series, value)| (series, value + 0.5));
    let [insert, append, late]: [&[Sent<'_>]; 3] = [&[(5, &first)], &[(9, &again)], &[(2, &first), (7, &again)]];
    for (readings, count) in [(insert, 1), (append, 1), (late, 2), (late, 0)] {
        let resent = readings.len() as u32 - count;
        assert_eq!(write(store, &write_of("exact:series", HOUR, readings)).await, written(count, resent));
    }
    expect(store, "exact:series", HOUR, &model_of(&[insert, append, late].concat())).await;
    let mut names = first.map(|(series, _)| Metric::from(series)).to_vec();
    names.sort_unstable();
    let device = store.device("exact:series").await.unwrap().unwrap();
    assert_eq!(device.series.into_iter().map(|series| series.metric).collect::<Vec<_>>(), names);
    for (series, value) in first {
        let only_it = SeriesFilter::new([series], []).unwrap();
        let stats = hour_stats(store, "exact:series", only(HOUR), &only_it).await.remove(0);
        let stats = &by_name(&stats.stats)[series];
        assert_eq!((stats.count, stats.min, stats.max), (4, value, value + 0.5), "{series}");
    }
}

pub(in crate::store) async fn many_small_writes_of_one_bucket_add_up(store: &dyn Store) {
    let mut model = Model::new();
    for at in 0..70_u32 {
        let value = [("a", f64::from(at) / 4.0)];
        let readings: &[Sent<'_>] = &[(at * 10, &value)];
        assert_eq!(write(store, &write_of("small-writes", HOUR, readings)).await, written(1, 0));
        model.extend(model_of(readings));
    }
    expect(store, "small-writes", HOUR, &model).await;
}

pub(in crate::store) async fn a_sum_that_leaves_the_range_of_a_double_comes_back(store: &dyn Store) {
    sums(store, "one-write", &[&[1e308, 1e308, -1e308]], 1e308).await;
    sums(store, "writes", &[&[1e308], &[1e308], &[-1e308]], 1e308).await;
    sums(store, "beyond", &[&[f64::MAX, f64::MAX]], f64::INFINITY).await;
}

/// Writes some values, one write after the other, and checks their sum.
async fn sums(store: &dyn Store, device: &str, writes: &[&[f64]], sum: f64) {
    let mut at = 0;
    for values in writes {
        let values: Vec<(&str, f64)> = values.iter().map(|&value| ("a", value)).collect();
        let readings: Vec<Sent<'_>> = (at..).zip(values.chunks(1)).collect();
        at += readings.len() as u32;
        write(store, &write_of(device, HOUR, &readings)).await;
    }
    let hours = hour_stats(store, device, only(HOUR), &SeriesFilter::ALL).await;
    assert_eq!((hours[0].stats[0].1.count, hours[0].stats[0].1.sum), (at.into(), sum), "{device}");
}

pub(in crate::store) async fn one_call_writes_many_buckets_and_answers_in_their_order(store: &dyn Store) {
    let readings: &[Sent<'_>] = &[(1, &[("a", 1.0)]), (2, &[("a", 2.0)])];
    let device = |nth: usize| format!("many-{:03}", nth / 2);
    let hour = |nth: usize| Hour(HOUR.0 + i32::try_from(nth % 2).unwrap());
    let is_second = |nth: usize| nth.is_multiple_of(3);
    let writes: Vec<_> = (0..600).map(|nth| write_of(&device(nth), hour(nth), readings)).collect();
    let first: Vec<_> = (0..600).filter(|&nth| is_second(nth)).map(|nth| writes[nth].clone()).collect();
    for outcome in store.write(&first).await {
        assert_eq!(outcome.unwrap(), written(2, 0));
    }
    let outcomes = store.write(&writes).await;
    assert_eq!(outcomes.len(), writes.len());
    for (nth, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome.unwrap(), if is_second(nth) { written(0, 2) } else { written(2, 0) }, "{nth}");
    }
    for nth in [0, 1, 299, 598, 599] {
        expect(store, &device(nth), hour(nth), &model_of(readings)).await;
    }
}

pub(in crate::store) async fn an_empty_call_answers_nothing(store: &dyn Store) {
    assert!(store.write(&[]).await.is_empty());
}

pub(in crate::store) async fn random_writes_leave_what_a_map_would_hold(store: &dyn Store) {
    random_writes(store, Extend::extend).await;
}

pub(in crate::store) async fn random_writes_leave_the_first_value_of_each_identity(store: &dyn Store) {
    random_writes(store, |model, samples| {
        for (identity, value) in samples {
            model.entry(identity).or_insert(value);
        }
    })
    .await;
}

/// Runs random writes. `apply` changes the model as a write changes the store.
async fn random_writes(store: &dyn Store, apply: fn(&mut Model, Model)) {
    for seed in seeds(2) {
        let device = format!("random-{seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let mut model = Model::new();
        let mut sent: Vec<Arc<BucketWrite>> = Vec::new();
        for step in 0..40 {
            let again = random.random_range(0..4) == 0 && !sent.is_empty();
            let next = if again {
                sent[random.random_range(0..sent.len())].clone()
            } else {
                random_write(&mut random, &device, HOUR, step)
            };
            let is_new =
                |sample: &Sample| !model.contains_key(&(sample.offset, next.contents.metric_of(sample).to_string()));
            let stored = next.count_stored(is_new);
            let outcome = write(store, &next).await;
            assert_eq!(outcome, written(stored, next.accepted - stored), "seed {seed}, step {step}");
            apply(&mut model, samples_of(&next.contents));
            expect(store, &device, HOUR, &model).await;
            sent.push(next);
        }
    }
}

/// A random write, mostly after the stored readings, so that all ways of writing are used.
pub(super) fn random_write(random: &mut StdRng, device: &str, hour: Hour, step: u32) -> Arc<BucketWrite> {
    let metrics = ["a", "b", "c"];
    let from = if random.random_range(0..3) == 0 { 0 } else { step * 10 };
    let readings: Vec<(HourOffset, Vec<(&str, f64)>)> = (0..random.random_range(1..8))
        .map(|_| {
            let of = &metrics[random.random_range(0..3)..];
            let values = of.iter().map(|&name| (name, f64::from(random.random_range(-400..400)) / 4.0)).collect();
            (from + random.random_range(0..20), values)
        })
        .collect();
    let readings: Vec<Sent<'_>> = readings.iter().map(|(offset, values)| (*offset, values.as_slice())).collect();
    write_of(device, hour, &readings)
}
