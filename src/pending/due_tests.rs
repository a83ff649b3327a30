//! Which buckets are due, when, why and in which order, against a plain list.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::log::BatchBuilder;
use crate::model::BucketWrite;

const DEVICES: [&str; 4] = ["a", "b", "c", "d"];
const MAX_AGE_MS: u64 = 2_000;
const SPREAD_MS: u64 = 700;
const MAX_READINGS: u32 = 4;

#[derive(Debug, Clone)]
enum Step {
    /// A reading of a device in an hour.
    Insert(usize, i32),
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
        8 => (0..DEVICES.len(), -1..3i32).prop_map(|(device, hour)| Step::Insert(device, hour)),
        5 => (0..400u64, 0..3usize, 5..40u64, 0..4usize)
            .prop_map(|(gather_ms, turns, log_behind, max)| Step::Take { gather_ms, turns, log_behind, max }),
        4 => any::<prop::sample::Index>().prop_map(Step::Complete),
        4 => (1..800u64).prop_map(Step::Pass),
        1 => (-2 * 3_600_000..2 * 3_600_000i64).prop_map(Step::Jump),
    ]
}

/// The same rules over plain lists, with a search for each question.
#[derive(Default)]
struct Model {
    /// The open buckets, in the order in which they were opened.
    open: Vec<Open>,
    /// The full ones, in the order in which they became full, or no longer blocked.
    full: VecDeque<(usize, i32)>,
    in_flight: Vec<Open>,
    /// The hour of the wall clock at the last take, if there was one.
    wall_hour: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Open {
    of: (usize, i32),
    position: u64,
    since_ms: u64,
    readings: u32,
    /// It was opened before its hour.
    is_ahead: bool,
}

impl Model {
    fn is_blocked(&self, of: (usize, i32)) -> bool {
        self.in_flight.iter().any(|taken| taken.of == of)
    }

    fn insert(&mut self, of: (usize, i32), position: u64, now_ms: u64) {
        let is_blocked = self.is_blocked(of);
        let is_ahead = self.wall_hour.is_some_and(|hour| of.1 > hour);
        if !self.open.iter().any(|open| open.of == of) {
            self.open.push(Open { of, position, since_ms: now_ms, readings: 0, is_ahead });
        }
        let open = self.open.iter_mut().find(|open| open.of == of).unwrap();
        open.readings += 1;
        if open.readings == MAX_READINGS && !is_blocked {
            self.full.push_back(of);
        }
    }

    fn take(&mut self, mut due: Due, max: usize) -> Vec<((usize, i32), Reason)> {
        self.wall_hour = Some(due.wall_ms.div_euclid(3_600_000) as i32);
        let mut taken = Vec::new();
        while taken.len() < max {
            let may_use_turn = |open: &Open| {
                let has_ended = due.wall_ms >= i64::from(open.of.1 + 1) * 3_600_000 + 30_000;
                has_ended && due.now_ms - open.since_ms >= due.spread_ms && due.turns > 0
            };
            let waiting = || self.open.iter().filter(|open| !self.is_blocked(open.of));
            let oldest = waiting().next().copied();
            let of_hour =
                [false, true].into_iter().filter_map(|is_ahead| waiting().find(|open| open.is_ahead == is_ahead));
            let of_hour = of_hour.copied().find(may_use_turn);
            let (of, reason) = if let Some(of) = self.full.pop_front() {
                (of, Reason::Size)
            } else if let Some(oldest) = oldest {
                if oldest.since_ms + MAX_AGE_MS <= due.horizon_ms {
                    (oldest.of, Reason::Age)
                } else if let Some(open) = of_hour {
                    due.turns -= 1;
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
        if self.open.iter().any(|open| open.of == of && open.readings >= MAX_READINGS) {
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
        let (mut now_ms, mut wall_ms, mut position) = (0, 3_600_000, 0);
        let mut in_flight: Vec<BucketWrite> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(device, hour) => {
                    let mut batch = BatchBuilder::default();
                    let ts_ms = Hour(hour).start_ms() + position as i64;
                    batch.push(DEVICES[device], None, ts_ms, [("x", 1.0)].into_iter()).unwrap();
                    pending.insert(batch.finish().payload(), Position(position), now_ms).unwrap();
                    model.insert((device, hour), position, now_ms);
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
                    let by_turn = named.iter().filter(|(_, reason)| *reason == Reason::Hour).count();
                    prop_assert!(by_turn <= turns);
                    prop_assert!(named.first().is_none_or(|(_, reason)| waits || *reason != Reason::Hour));
                    // Nothing is older than allowed, whatever the wall clock says.
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
        }
    }
}

/// Three devices report in hour 0, and the clock of `a` is already in hour 1.
#[test]
fn a_device_whose_clock_is_ahead_does_not_hold_up_the_ended_hours_of_others() {
    let limits = Limits { max_bytes: 1 << 30, max_readings: MAX_READINGS, max_age: Duration::from_secs(86_400) };
    let mut pending = Pending::new(limits);
    let take_at = |pending: &mut Pending, wall_ms: i64| -> Vec<(String, i32)> {
        let now_ms = wall_ms as u64;
        let log_before = Position(0);
        let due = Due { now_ms, wall_ms, horizon_ms: now_ms, turns: 9, spread_ms: SPREAD_MS, log_before };
        let taken = pending.take(Take::Due(due), 9);
        taken.iter().map(TakenBucket::to_write).map(|write| (write.device.to_string(), write.hour.0)).collect()
    };
    assert_eq!(take_at(&mut pending, 3_000_000), []);
    for (device, hour) in [("b", 0), ("a", 1), ("c", 0), ("d", 0)] {
        let mut batch = BatchBuilder::default();
        batch.push(device, None, Hour(hour).start_ms(), [("x", 1.0)].into_iter()).unwrap();
        pending.insert(batch.finish().payload(), Position(1), 3_000_000).unwrap();
    }
    let of_hour = |devices: &[&str], hour| devices.iter().map(|&device| (device.to_owned(), hour)).collect::<Vec<_>>();
    assert_eq!(take_at(&mut pending, 3_620_000), []);
    assert_eq!(take_at(&mut pending, 3_630_000), of_hour(&["b", "c", "d"], 0));
    assert_eq!(take_at(&mut pending, 7_220_000), []);
    assert_eq!(take_at(&mut pending, 7_230_000), of_hour(&["a"], 1));
}
