//! Pending against a plain map.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::log::{BatchBuilder, BegunDeletion, Position};
use crate::model::{BucketWrite, Contents, Deletion};

mod memory;

const LIMITS: Limits = Limits { max_bytes: 1 << 20, max_readings: 5, max_age: Duration::from_millis(100) };

type Identity = (String, i64, String);

/// A device, an instant, and values by name.
type Reading<'a> = (&'a str, i64, &'a [(&'a str, f64)]);

/// A reading whose device and names are indices, and whose values are integers.
type AnyReading = (usize, i64, Vec<(usize, i32)>);

fn batch(readings: &[Reading<'_>]) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    for (device, ts_ms, values) in readings {
        builder.push(device, None, *ts_ms, values.iter().copied()).unwrap();
    }
    builder.finish().payload().to_vec()
}

fn insert(pending: &mut Pending, at: u64, readings: &[Reading<'_>]) {
    pending.insert(&batch(readings), Position(at), at).unwrap();
}

const ALL: Take = Take::All(Reason::Drain);

/// Takes what is due by size, age or memory.
fn due(now_ms: u64) -> Take {
    let log_before = Position::default();
    Take::Due(Due { now_ms, wall_ms: 0, horizon_ms: now_ms, turns: 0, spread_ms: 0, log_before })
}

fn take(pending: &mut Pending, which: Take, max: usize) -> Vec<Arc<BucketWrite>> {
    pending.take(which, max).iter().map(|taken| Arc::new(taken.to_write())).collect()
}

fn hours(pending: &Pending, device: &str, hours: std::ops::Range<Hour>) -> Vec<PendingHour> {
    let (mut found, mut rest) = pending.hours(device, hours.clone());
    assert_eq!(pending.has_hours(device, &hours), !found.is_empty());
    while let Some(next) = rest {
        let turn = pending.hours(device, next..hours.end);
        found.extend(turn.0);
        rest = turn.1;
    }
    found
}

fn spread(into: &mut BTreeMap<Identity, f64>, device: &str, hour: Hour, contents: &Contents) {
    for sample in contents.samples() {
        let identity = (device.to_owned(), hour.instant_ms(sample.offset), contents.metric_of(sample).to_string());
        into.insert(identity, sample.value);
    }
}

fn everything(pending: &Pending, devices: &[&str]) -> BTreeMap<Identity, f64> {
    let mut all = BTreeMap::new();
    for device in devices {
        for hour in hours(pending, device, Hour::ALL) {
            spread(&mut all, device, hour.hour, &hour.contents());
        }
    }
    all
}

#[derive(Debug, Clone)]
enum Operation {
    Insert(Vec<AnyReading>),
    Take(usize),
    TakeAll,
    Complete(prop::sample::Index),
    Pass(u64),
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let values = prop::collection::vec((0..3usize, -9..9i32), 1..4);
    let reading = (0..3usize, -2..3i64, 0..40i64, values)
        .prop_map(|(device, hour, at, values)| (device, hour * 3_600_000 + at, values));
    prop_oneof![
        6 => prop::collection::vec(reading, 1..12).prop_map(Operation::Insert),
        3 => (1..4usize).prop_map(Operation::Take),
        1 => Just(Operation::TakeAll),
        4 => any::<prop::sample::Index>().prop_map(Operation::Complete),
        2 => (1..120u64).prop_map(Operation::Pass),
    ]
}

proptest! {
    #[test]
    fn pending_over_stored_is_always_what_was_inserted(
        operations in prop::collection::vec(any_operation(), 1..60)
    ) {
        let devices = ["a", "b", "c"];
        let metrics = ["x", "y", "z"];
        let mut pending = Pending::new(LIMITS);
        let mut inserted: BTreeMap<Identity, f64> = BTreeMap::new();
        let mut stored: BTreeMap<Identity, f64> = BTreeMap::new();
        let mut in_flight: Vec<Arc<BucketWrite>> = Vec::new();
        let (mut now_ms, mut position, mut accepted, mut completed) = (0, 0, 0, 0);
        let mut oldest_unstored: Vec<(u64, Vec<Identity>)> = Vec::new();
        for operation in operations {
            match operation {
                Operation::Insert(readings) => {
                    let mut builder = BatchBuilder::default();
                    let mut identities = Vec::new();
                    for (device, ts_ms, values) in &readings {
                        let named = values.iter().map(|&(metric, value)| (metrics[metric], f64::from(value)));
                        builder.push(devices[*device], None, *ts_ms, named.clone()).unwrap();
                        for (metric, value) in named {
                            let identity = (devices[*device].to_owned(), *ts_ms, metric.to_owned());
                            inserted.insert(identity.clone(), value);
                            identities.push(identity);
                        }
                    }
                    pending.insert(builder.finish().payload(), Position(position), now_ms).unwrap();
                    oldest_unstored.push((position, identities));
                    position += 1;
                    accepted += readings.len() as u64;
                }
                Operation::Take(max) => {
                    let taken = take(&mut pending, due(now_ms), max);
                    prop_assert!(taken.len() <= max);
                    in_flight.extend(taken);
                }
                Operation::TakeAll => in_flight.extend(take(&mut pending, ALL, usize::MAX)),
                Operation::Complete(which) if !in_flight.is_empty() => {
                    let write = in_flight.swap_remove(which.index(in_flight.len()));
                    spread(&mut stored, &write.device, write.hour, &write.contents);
                    completed += u64::from(write.accepted);
                    pending.complete(&write);
                }
                Operation::Complete(_) => {}
                Operation::Pass(ms) => now_ms += ms,
            }
            for (at, write) in in_flight.iter().enumerate() {
                let is_same = |other: &Arc<BucketWrite>| (&other.device, other.hour) == (&write.device, write.hour);
                let twice = in_flight[..at].iter().any(is_same);
                prop_assert!(!twice, "two writes of one bucket in flight");
            }
            let waiting = everything(&pending, &devices);
            let mut seen = stored.clone();
            seen.extend(waiting.clone());
            prop_assert_eq!(&seen, &inserted);
            prop_assert_eq!(pending.readings(), accepted - completed);
            let cut = pending.cut_position(Position(position)).0;
            for (at, identities) in &oldest_unstored {
                let is_unstored = |identity| waiting.contains_key(identity) && !stored.contains_key(identity);
                let is_waiting = identities.iter().any(is_unstored);
                prop_assert!(!is_waiting || cut <= *at, "cut at {cut} passes a reading that is not stored, at {at}");
            }
        }
        in_flight.extend(take(&mut pending, ALL, usize::MAX));
        for write in in_flight.drain(..) {
            pending.complete(&write);
        }
        for write in take(&mut pending, ALL, usize::MAX) {
            pending.complete(&write);
        }
        prop_assert_eq!((pending.readings(), pending.bytes, pending.buckets()), (0, 0, 0), "nothing remains");
        prop_assert!(pending.devices.is_empty() && pending.by_id.is_empty() && pending.sorted.is_empty());
        prop_assert_eq!(pending.cut_position(Position(position)), Position(position));
    }
}

#[test]
fn a_bucket_is_due_when_it_is_full_or_old_or_memory_is_short() {
    let mut pending = Pending::new(LIMITS);
    insert(&mut pending, 0, &[("old", 0, &[("x", 1.0)])]);
    for at in 1..=5 {
        insert(&mut pending, at, &[("full", at as i64, &[("x", 1.0)])]);
    }
    let names = |taken: Vec<Arc<BucketWrite>>| taken.iter().map(|write| write.device.to_string()).collect::<Vec<_>>();
    assert_eq!(pending.due_at_ms(), Some(100));
    assert_eq!(names(take(&mut pending, due(99), 10)), ["full"]);
    assert_eq!(names(take(&mut pending, due(100), 10)), ["old"]);

    let mut pending = Pending::new(Limits { max_bytes: 4 * 350, ..LIMITS });
    insert(&mut pending, 0, &[("first", 0, &[("x", 1.0)])]);
    insert(&mut pending, 1, &[("second", 0, &[("x", 1.0)]), ("third", 0, &[("x", 1.0)])]);
    assert!(take(&mut pending, due(1), 10).is_empty(), "{} bytes are not short", pending.bytes());
    insert(&mut pending, 2, &[("fourth", 0, &[("x", 1.0)])]);
    assert_eq!(names(take(&mut pending, due(2), 1)), ["first"], "the oldest is due when memory is short");
}

#[test]
fn pending_is_full_until_a_bucket_with_very_many_values_is_taken() {
    let mut pending = Pending::new(Limits { max_readings: 100, ..LIMITS });
    pending.max_values = 4;
    let two = [("x", 1.0), ("y", 1.0)];
    insert(&mut pending, 0, &[("a", 0, &two), ("b", 0, &two)]);
    assert!(!pending.is_full() && take(&mut pending, due(0), 10).is_empty());
    insert(&mut pending, 1, &[("a", 0, &two), ("a", 0, &two)]);
    assert_eq!((pending.is_full(), pending.crowded()), (true, Some(("a".into(), Hour(0)))));
    let first = take(&mut pending, due(1), 10);
    assert_eq!((first.len(), &*first[0].device, first[0].accepted), (1, "a", 3));
    assert!(!pending.is_full(), "others need not wait for the store");

    insert(&mut pending, 2, &[("a", 0, &two), ("a", 1, &two)]);
    assert!(pending.is_full() && take(&mut pending, due(2), 10).is_empty(), "its first write is in flight");
    pending.complete(&first[0]);
    assert_eq!((pending.is_full(), take(&mut pending, due(2), 10).len(), pending.is_full()), (true, 1, false));
}

#[test]
fn a_deletion_may_leave_a_bucket_with_fewer_values_than_make_pending_full() {
    let mut pending = Pending::new(Limits { max_readings: 100, ..LIMITS });
    pending.max_values = 2;
    insert(&mut pending, 1, &[("a", 0, &[("x", 1.0)]), ("a", 1, &[("x", 1.0)]), ("a", 2, &[("x", 1.0)])]);
    for (id, until_ms, is_full) in [(7, 1, true), (8, 2, false)] {
        let deletion = Arc::new(Deletion { range_ms: Some(0..until_ms), ..Deletion::of_device("a".into()) });
        let begun = BegunDeletion { id, by: "test".into(), deletion: Arc::clone(&deletion), from: None };
        pending.begin_deletion(begun, BTreeSet::new(), Position(5), 5);
        let hour = hours(&pending, "a", deletion.hours()).remove(0);
        assert_eq!(pending.erase(id, "a", HourErasure::of(&hour, &deletion)).0, 1);
        assert_eq!(pending.is_full(), is_full);
        pending.end_erasure(id);
    }
    insert(&mut pending, 6, &[("a", 3, &[("x", 1.0)])]);
    assert!(pending.is_full() && take(&mut pending, due(6), 10).is_empty(), "the deletions block it");
    while pending.deletions() > 0 {
        pending.finish_deletion();
    }
    assert_eq!((take(&mut pending, due(6), 10).len(), pending.is_full()), (1, false));
}

#[test]
fn readings_of_a_bucket_in_flight_wait_for_its_completion() {
    let mut pending = Pending::new(LIMITS);
    insert(&mut pending, 0, &[("a", 0, &[("x", 1.0)])]);
    let first = take(&mut pending, ALL, 10);
    for at in 1..=5 {
        insert(&mut pending, at, &[("a", at as i64, &[("x", 2.0)])]);
    }
    assert!(take(&mut pending, ALL, 10).is_empty(), "a write of this bucket is in flight");
    assert_eq!(hours(&pending, "a", Hour(0)..Hour(1))[0].contents().samples().len(), 6);
    pending.complete(&first[0]);
    assert_eq!(take(&mut pending, due(6), 10).len(), 1, "full, and no longer blocked");
}

#[test]
fn a_bucket_that_was_blocked_is_taken_by_its_age() {
    let mut pending = Pending::new(LIMITS);
    for (at, device) in [(0, "a"), (1, "b")] {
        insert(&mut pending, at, &[(device, 0, &[("x", 1.0)])]);
    }
    let first = take(&mut pending, ALL, 2);
    for (at, device) in [(2, "c"), (3, "b"), (4, "d"), (5, "a"), (6, "e")] {
        insert(&mut pending, at, &[(device, 0, &[("x", 1.0)])]);
    }
    for write in first {
        pending.complete(&write);
    }
    assert_eq!((pending.oldest_ms(), pending.cut_position(Position(9))), (Some(2), Position(2)));
    let order = take(&mut pending, ALL, 10);
    assert_eq!(order.iter().map(|write| &*write.device).collect::<Vec<_>>(), ["c", "b", "d", "a", "e"]);
}

#[test]
fn a_bucket_that_a_deletion_blocks_keeps_its_age() {
    let mut pending = Pending::new(LIMITS);
    insert(&mut pending, 1, &[("a", 0, &[("x", 1.0)]), ("a", 1_000, &[("x", 1.0)])]);
    let deletion = Arc::new(Deletion { range_ms: Some(0..500), ..Deletion::of_device("a".into()) });
    let begun = BegunDeletion { id: 7, by: "test".into(), deletion: Arc::clone(&deletion), from: None };
    pending.begin_deletion(begun, BTreeSet::new(), Position(5), 5);
    for hour in hours(&pending, "a", deletion.hours()) {
        assert_eq!(pending.erase(7, "a", HourErasure::of(&hour, &deletion)).0, 1);
    }
    assert!(take(&mut pending, ALL, 10).is_empty());
    assert_eq!((pending.oldest_ms(), pending.cut_position(Position(9))), (Some(1), Position(1)));
}

#[test]
fn a_parked_bucket_delays_no_deletion_and_loses_what_it_selects() {
    let mut pending = Pending::new(LIMITS);
    insert(&mut pending, 1, &[("a", 0, &[("x", 1.0)]), ("a", 1_000, &[("x", 1.0)])]);
    let taken = take(&mut pending, ALL, 1);
    let deletion = Arc::new(Deletion { range_ms: Some(0..500), ..Deletion::of_device("a".into()) });
    let begun = BegunDeletion { id: 7, by: "test".into(), deletion: Arc::clone(&deletion), from: None };
    pending.begin_deletion(begun, BTreeSet::new(), Position(5), 5);
    pending.end_erasure(7);
    assert!(matches!(pending.next_deletion(), NextDeletion::None), "the write is in flight");
    pending.park(&taken[0]);
    assert!(matches!(pending.next_deletion(), NextDeletion::Ready(_)));
    let hour = hours(&pending, "a", deletion.hours()).remove(0);
    assert!(pending.erase_parked(&taken[0], HourErasure::of_parked(&hour, &deletion)).is_some());
    assert_eq!((pending.readings(), pending.cut_position(Position(9))), (1, Position(1)));
    let left = hours(&pending, "a", deletion.hours()).remove(0);
    assert_eq!((left.span_ms(), left.contents().reading_count()), ((1_000, 1_000), 1));
    assert!(pending.finish_deletion());
    pending.complete(&taken[0]);
    assert_eq!((pending.readings(), pending.bytes, pending.buckets()), (0, 0, 0), "nothing remains");
}

#[test]
fn a_write_that_does_not_end_delays_no_other_bucket() {
    let mut pending = Pending::new(LIMITS);
    insert(&mut pending, 0, &[("a", 0, &[("x", 1.0)])]);
    let stuck = take(&mut pending, ALL, 1);
    for at in 1..=9 {
        insert(&mut pending, at, &[("a", 0, &[("x", 1.0)]), ("b", 0, &[("x", 1.0)])]);
        let others = take(&mut pending, ALL, 10);
        assert_eq!(others.iter().map(|write| &*write.device).collect::<Vec<_>>(), ["b"]);
        pending.complete(&others[0]);
        assert_eq!(pending.cut_position(Position(10)), Position(0));
        assert_eq!((pending.due_at_ms(), pending.is_urgent()), (None, false), "the bucket of a waits for its write");
    }
    pending.complete(&stuck[0]);
    assert_eq!((pending.due_at_ms(), pending.is_urgent()), (Some(101), true), "full, and no longer blocked");
}

#[test]
fn devices_are_listed_in_order_by_prefix_and_cursor() {
    let mut pending = Pending::new(LIMITS);
    for id in ["b-2", "a-1", "b-1", "b-3", "c"] {
        insert(&mut pending, 0, &[(id, 0, &[("x", 1.0)])]);
    }
    let list = |prefix: &str, after: Option<&str>, limit| {
        pending.devices(prefix, after, limit).0.iter().map(|device| device.device.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list("", None, 10), ["a-1", "b-1", "b-2", "b-3", "c"]);
    assert_eq!(list("b-", None, 2), ["b-1", "b-2"]);
    assert_eq!(list("b-", Some("b-2"), 2), ["b-3"]);
    assert!(list("x", None, 2).is_empty());
}

/// Inserts a record as the feeder does, and returns the most readings of a turn.
fn insert_in_turns(pending: &mut Pending, payload: &[u8]) -> usize {
    let mut insertion = Insertion::new(payload, Position(0)).unwrap();
    let mut longest = 0;
    while insertion.decode().unwrap() {
        let before = pending.readings();
        longest = longest.max(insertion.apply(pending, 0) as usize);
        assert!(pending.readings() > before);
    }
    assert!(insertion.is_over());
    longest
}

#[test]
fn no_turn_touches_more_than_a_bounded_number_of_values() {
    let mut pending = Pending::new(Limits { max_bytes: u64::MAX, max_readings: u32::MAX, ..LIMITS });
    let mut builder = BatchBuilder::default();
    let count = 50 * ITEMS_PER_TURN as i64;
    for at in 0..count {
        let name = format!("m{}", at % 3_000);
        builder.push("large", None, at, [(name.as_str(), at as f64)].into_iter()).unwrap();
    }
    assert!(insert_in_turns(&mut pending, builder.finish().payload()) <= ITEMS_PER_TURN, "a turn of the feeder");

    let touched = |pending: &Pending| {
        let device = pending.find_device("large").unwrap();
        let (hour, items) = pending.snapshot(pending.devices[device].hours.first().unwrap());
        assert_eq!((hour.values(), hour.contents().samples().len()), (count as usize, count as usize));
        items
    };
    assert!(touched(&pending) <= 200, "sealed pieces are not copied");
    let taken = pending.take(ALL, 10);
    assert!(touched(&pending) <= ITEMS_PER_BUCKET, "a bucket in flight is shared");
    assert_eq!(taken[0].to_write().contents.samples().len() as i64, count);
}

#[test]
fn turns_of_lists_and_ranges_miss_nothing() {
    let mut pending = Pending::new(Limits { max_bytes: u64::MAX, max_readings: u32::MAX, ..LIMITS });
    for device in 0..200 {
        let mut builder = BatchBuilder::default();
        for at in 0..300 {
            builder.push(&format!("d{device:03}"), None, at, [("x", 1.0)].into_iter()).unwrap();
            builder.push("hours", None, device * 3_600_000 + at, [("x", 1.0)].into_iter()).unwrap();
        }
        insert_in_turns(&mut pending, builder.finish().payload());
    }
    let (mut listed, mut after, mut turns) = (Vec::new(), None, 0);
    loop {
        let (turn, is_cut) = pending.devices("", after.as_deref(), 1_000);
        assert!(turn.len() <= ITEMS_PER_TURN / 64, "{} devices at once", turn.len());
        listed.extend(turn.iter().map(|device| device.device.to_string()));
        (after, turns) = (listed.last().cloned(), turns + 1);
        if !is_cut {
            break;
        }
    }
    let expected: Vec<String> = (0..200).map(|device| format!("d{device:03}")).chain(["hours".to_owned()]).collect();
    assert_eq!((listed, turns > 2), (expected, true));
    assert!(pending.hours("hours", Hour(0)..Hour(199)).0.len() <= ITEMS_PER_TURN / 64);
    let found: Vec<i32> = hours(&pending, "hours", Hour(3)..Hour(199)).iter().map(|hour| hour.hour.0).collect();
    assert_eq!(found, (3..199).collect::<Vec<_>>());
}

#[test]
fn a_snapshot_does_not_change_and_knows_its_names() {
    let mut pending = Pending::new(Limits { max_bytes: u64::MAX, ..LIMITS });
    insert(&mut pending, 0, &[("a", 5, &[("x", 1.0)])]);
    let before = hours(&pending, "a", Hour(0)..Hour(1)).remove(0);
    for round in 0..30 {
        let names: Vec<String> = (0..1000).map(|name| format!("m-{round}-{name}")).collect();
        let values: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 2.0)).collect();
        insert(&mut pending, round, &[("a", 9, &values)]);
    }
    insert(&mut pending, 0, &[("a", 7, &[("x", 3.0)])]);
    assert_eq!((before.values(), before.contents().value(5, "x"), before.span_ms()), (1, Some(1.0), (5, 5)));
    let now = hours(&pending, "a", Hour(0)..Hour(1)).remove(0);
    assert_eq!((now.metrics().len(), now.contents().value(7, "x"), now.span_ms()), (30_001, Some(3.0), (5, 9)));
}

#[test]
fn each_device_has_its_own_measurements_and_a_text_is_one_series() {
    let mut pending = Pending::new(Limits { max_readings: 100, ..LIMITS });
    let mut at = 0;
    let mut insert = |device, ts_ms, measurement_bytes, value| {
        let mut builder = BatchBuilder::default();
        let values = [("a_b_c", value), ("z", value)];
        builder.push_of(None, device, None, ts_ms, measurement_bytes, values.into_iter()).unwrap();
        at += 1;
        pending.insert(builder.finish().payload(), Position(at), at).unwrap();
    };
    insert("one", 0, 1, 1.0); // `a_b_c` is field `b_c` of measurement `a`
    insert("two", 0, 3, 2.0); // `a_b_c` is field `c` of measurement `a_b`
    insert("json", 0, 0, 3.0); // a metric of its own, until a measurement is known
    for (ts_ms, measurement_bytes) in [(0, 3), (1, 1), (2, 0)] {
        insert("one", ts_ms, measurement_bytes, 4.0 + ts_ms as f64);
        insert("json", ts_ms, 1, 4.0 + ts_ms as f64);
    }
    let mut written = take(&mut pending, ALL, 10);
    written.sort_by(|a, b| a.device.cmp(&b.device));
    let found = written.iter().map(|write| {
        let contents = &write.contents;
        let samples = contents.samples().iter();
        let values: Vec<_> = samples.filter(|of| **contents.metric_of(of) == *"a_b_c").map(|of| of.value).collect();
        let named =
            contents.metrics().iter().find(|metric| ***metric == *"a_b_c").and_then(|found| found.measurement());
        (&*write.device, named.map(str::to_owned), values)
    });
    let a = || Some("a".to_owned());
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            ("json", a(), vec![4.0, 5.0, 6.0]),
            ("one", a(), vec![4.0, 5.0, 6.0]),
            ("two", Some("a_b".to_owned()), vec![2.0]),
        ]
    );
}
