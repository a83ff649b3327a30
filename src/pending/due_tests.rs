//! Which buckets are due, when, why and in which order, against a plain list.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::log::{BatchBuilder, Position};
use crate::model::BucketWrite;

const DEVICES: [&str; 4] = ["a", "b", "c", "d"];
const VALUES: [(&str, f64); 3] = [("x", 1.0), ("y", 1.0), ("z", 1.0)];
const MAX_AGE_MS: u64 = 2_000;
const SPREAD_MS: u64 = 700;
const MAX_READINGS: u32 = 4;
const MAX_VALUES: usize = 6;

#[derive(Debug, Clone)]
enum Step {
    /// A reading of a device in an hour, with this many values.
    Insert(usize, i32, usize),
    Take {
        gather_ms: u64,
        turns: usize,
        /// How far behind the last record the log runs short.
        log_behind: u64,
        max: usize,
    },
    Complete(prop::sample::Index),
    Pass(u64),
    /// The wall clock jumps.
    Jump(i64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..DEVICES.len(), -1..3i32, 1..=VALUES.len())
            .prop_map(|(device, hour, values)| Step::Insert(device, hour, values)),
        5 => (0..400u64, 0..3usize, 5..40u64, 0..4usize)
            .prop_map(|(gather_ms, turns, log_behind, max)| Step::Take { gather_ms, turns, log_behind, max }),
        4 => any::<prop::sample::Index>().prop_map(Step::Complete),
        4 => (1..800u64).prop_map(Step::Pass),
        1 => (-2 * 3_600_000..2 * 3_600_000i64).prop_map(Step::Jump),
    ]
}

/// A model of pending: the same rules over plain lists.
///
/// It searches the lists for each answer.
#[derive(Default)]
struct Model {
    /// The open buckets, in the order in which they were opened.
    open: Vec<Open>,
    /// The full buckets, in the order in which they became full or unblocked.
    full: VecDeque<(usize, i32)>,
    in_flight: Vec<Open>,
    /// The wall clock at the last take, if there was one.
    wall_ms: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Open {
    of: (usize, i32),
    position: u64,
    since_ms: u64,
    readings: u32,
    values: usize,
    /// The bucket was opened after its hour had ended.
    is_late: bool,
}

impl Open {
    const fn is_full(&self) -> bool {
        self.readings >= MAX_READINGS || self.values >= MAX_VALUES
    }
}

fn has_ended(hour: i32, wall_ms: i64) -> bool {
    wall_ms >= i64::from(hour + 1) * 3_600_000 + 30_000
}

impl Model {
    fn is_blocked(&self, of: (usize, i32)) -> bool {
        self.in_flight.iter().any(|taken| taken.of == of)
    }

    fn insert(&mut self, of: (usize, i32), values: usize, position: u64, now_ms: u64) {
        let is_blocked = self.is_blocked(of);
        let is_late = self.wall_ms.is_some_and(|wall_ms| has_ended(of.1, wall_ms));
        if !self.open.iter().any(|open| open.of == of) {
            self.open.push(Open { of, position, since_ms: now_ms, readings: 0, values: 0, is_late });
        }
        let open = self.open.iter_mut().find(|open| open.of == of).unwrap();
        let was_full = open.is_full();
        (open.readings, open.values) = (open.readings + 1, open.values + values);
        if open.is_full() && !was_full && !is_blocked {
            self.full.push_back(of);
        }
    }

    fn take(&mut self, mut due: Due, max: usize) -> Vec<((usize, i32), Reason)> {
        self.wall_ms = Some(due.wall_ms);
        let mut taken = Vec::new();
        while taken.len() < max {
            let (on_time_ms, late_ms) = if due.turns > 0 { (0, SPREAD_MS) } else { (2 * SPREAD_MS, 2 * SPREAD_MS) };
            let waiting = || self.open.iter().filter(|open| !self.is_blocked(open.of));
            let oldest = waiting().next().copied();
            let on_time = waiting().filter(|open| !open.is_late).min_by_key(|open| open.of.1);
            let on_time = on_time.filter(|open| has_ended(open.of.1, due.wall_ms - on_time_ms as i64));
            let late = waiting().find(|open| open.is_late);
            let late = late.filter(|open| due.now_ms - open.since_ms >= late_ms);
            let of_hour = on_time.or(late).copied();
            let (of, reason) = if let Some(of) = self.full.pop_front() {
                (of, Reason::Size)
            } else if let Some(oldest) = oldest {
                if oldest.since_ms + MAX_AGE_MS <= due.horizon_ms {
                    (oldest.of, Reason::Age)
                } else if let Some(open) = of_hour {
                    due.turns = due.turns.saturating_sub(1);
                    (open.of, Reason::Hour)
                } else if oldest.position < due.log_before.0 {
                    (oldest.of, Reason::Log)
                } else {
                    break;
                }
            } else {
                break;
            };
            let at = self.open.iter().position(|open| open.of == of).unwrap();
            self.in_flight.push(self.open.remove(at));
            taken.push((of, reason));
        }
        taken
    }

    fn complete(&mut self, of: (usize, i32)) {
        self.in_flight.retain(|taken| taken.of != of);
        if self.open.iter().any(|open| open.of == of && open.is_full()) {
            self.full.push_back(of);
        }
    }

    fn cut_position(&self, inserted: u64) -> u64 {
        let waiting = self.open.iter().chain(&self.in_flight).map(|bucket| bucket.position);
        waiting.fold(inserted, u64::min)
    }
}

proptest! {
    #[test]
    fn buckets_are_taken_in_the_order_and_for_the_reasons_of_a_plain_list(
        steps in prop::collection::vec(any_step(), 1..120)
    ) {
        let limits =
            Limits { max_bytes: 1 << 30, max_readings: MAX_READINGS, max_age: Duration::from_millis(MAX_AGE_MS) };
        let (mut pending, mut model) = (Pending::new(limits), Model::default());
        pending.max_values = MAX_VALUES as u32;
        let (mut now_ms, mut wall_ms, mut position) = (0, 3_600_000, 0);
        let mut in_flight: Vec<BucketWrite> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(device, hour, values) => {
                    let mut batch = BatchBuilder::default();
                    let ts_ms = Hour(hour).start_ms() + position as i64;
                    batch.push(DEVICES[device], None, ts_ms, VALUES[..values].iter().copied()).unwrap();
                    pending.insert(batch.finish().payload(), Position(position), now_ms).unwrap();
                    model.insert((device, hour), values, position, now_ms);
                    position += 1;
                }
                Step::Take { gather_ms, turns, log_behind, max } => {
                    let log_before = Position(position.saturating_sub(log_behind));
                    let horizon_ms = now_ms + gather_ms;
                    let due = Due { now_ms, wall_ms, horizon_ms, turns, spread_ms: SPREAD_MS, log_before };
                    let waits = pending.waits_for_turn(&due);
                    let taken = pending.take(Take::Due(due), max);
                    let named: Vec<_> = taken
                        .iter()
                        .map(|taken| {
                            let write = taken.to_write();
                            let device = DEVICES.iter().position(|&device| device == &*write.device).unwrap();
                            ((device, write.hour.0), taken.reason())
                        })
                        .collect();
                    prop_assert_eq!(&named, &model.take(due, max));
                    prop_assert!(named.first().is_none_or(|(_, reason)| waits || *reason != Reason::Hour));
                    // A bucket that is due by its age is left only if `max` were taken, by any wall clock.
                    let is_late = pending.due_at_ms().is_some_and(|due_ms| due_ms <= horizon_ms);
                    prop_assert!(!is_late || taken.len() == max);
                    in_flight.extend(taken.iter().map(TakenBucket::to_write));
                }
                Step::Complete(which) if !in_flight.is_empty() => {
                    let write = in_flight.swap_remove(which.index(in_flight.len()));
                    let device = DEVICES.iter().position(|&device| device == &*write.device).unwrap();
                    pending.complete(&write);
                    model.complete((device, write.hour.0));
                }
                Step::Complete(_) => {}
                Step::Pass(ms) => (now_ms, wall_ms) = (now_ms + ms, wall_ms + ms as i64),
                Step::Jump(ms) => wall_ms += ms,
            }
            prop_assert_eq!(pending.cut_position(Position(position)), Position(model.cut_position(position)));
            let waiting = model.open.iter().chain(&model.in_flight);
            prop_assert_eq!(pending.oldest_ms(), waiting.map(|bucket| bucket.since_ms).min());
            prop_assert_eq!(pending.is_full(), model.open.iter().any(|open| open.values >= MAX_VALUES));
        }
    }
}

const PATIENT: Limits = Limits { max_bytes: 1 << 30, max_readings: 1 << 20, max_age: Duration::from_secs(86_400) };

/// Inserts a reading of a device at the beginning of an hour.
fn insert(pending: &mut Pending, device: &str, hour: i32, position: u64, now_ms: u64) {
    let mut batch = BatchBuilder::default();
    batch.push(device, None, Hour(hour).start_ms(), [("x", 1.0)].into_iter()).unwrap();
    pending.insert(batch.finish().payload(), Position(position), now_ms).unwrap();
}

/// Takes with this many turns, when both clocks have the same time.
fn take_at(pending: &mut Pending, now_ms: u64, turns: usize) -> Vec<(String, i32)> {
    let due = Due {
        now_ms,
        wall_ms: now_ms as i64,
        horizon_ms: now_ms,
        turns,
        spread_ms: SPREAD_MS,
        log_before: Position(0),
    };
    let taken = pending.take(Take::Due(due), 99);
    assert!(taken.iter().all(|taken| taken.reason() == Reason::Hour));
    taken.iter().map(TakenBucket::to_write).map(|write| (write.device.to_string(), write.hour.0)).collect()
}

fn of_hour(devices: &[&str], hour: i32) -> Vec<(String, i32)> {
    devices.iter().map(|&device| (device.to_owned(), hour)).collect()
}

/// The clock of `a` is in the next hour already, that of `z` days ahead, and that of `y` hours behind.
#[test]
fn neither_early_nor_late_devices_hold_up_the_ended_hours_of_others() {
    let mut pending = Pending::new(PATIENT);
    assert_eq!(take_at(&mut pending, 3_000_000, 9), []);
    for (device, hour) in [("z", 480), ("b", 0), ("a", 1), ("c", 0), ("y", -5), ("d", 0)] {
        insert(&mut pending, device, hour, 1, 3_000_000);
    }
    assert_eq!(take_at(&mut pending, 3_000_000 + SPREAD_MS - 1, 9), []);
    assert_eq!(take_at(&mut pending, 3_000_000 + SPREAD_MS, 9), of_hour(&["y"], -5));
    assert_eq!(take_at(&mut pending, 3_629_999, 9), []);
    assert_eq!(take_at(&mut pending, 3_630_000, 9), of_hour(&["b", "c", "d"], 0));
    assert_eq!(take_at(&mut pending, 7_229_999, 9), []);
    assert_eq!(take_at(&mut pending, 7_230_000, 9), of_hour(&["a"], 1));
}

/// A bucket that is opened shortly before its hour ends is due with the hour, and a late reading does not
/// wait for the buckets of the current hour, all of which are older.
#[test]
fn a_bucket_of_an_ended_hour_waits_for_no_other_bucket_and_not_long_for_a_turn() {
    let mut pending = Pending::new(PATIENT);
    assert_eq!(take_at(&mut pending, 3_000_000, 9), []);
    insert(&mut pending, "old", 1, 1, 3_000_000);
    insert(&mut pending, "just before", 0, 2, 3_599_999);
    assert_eq!(take_at(&mut pending, 3_630_000, 9), of_hour(&["just before"], 0));
    for (position, device) in (3..).zip(["b", "c"]) {
        insert(&mut pending, device, 0, position, 4_000_000);
    }
    assert_eq!(take_at(&mut pending, 4_000_000 + SPREAD_MS - 1, 9), []);
    assert_eq!(take_at(&mut pending, 4_000_000 + SPREAD_MS, 1), of_hour(&["b"], 0));
    assert_eq!(take_at(&mut pending, 4_000_000 + 2 * SPREAD_MS - 1, 0), []);
    assert_eq!(take_at(&mut pending, 4_000_000 + 2 * SPREAD_MS, 0), of_hour(&["c"], 0));
    assert_eq!(take_at(&mut pending, 7_230_000 + 2 * SPREAD_MS - 1, 0), []);
    assert_eq!(take_at(&mut pending, 7_230_000 + 2 * SPREAD_MS, 0), of_hour(&["old"], 1));
}
