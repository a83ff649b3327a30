//! The history of writes: the outcome of each as its sender knows it, and the values that may be stored.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::workload::{Batch, Sent};

/// The metrics of the readings.
pub(crate) const METRICS: [&str; 2] = ["a", "b"];

/// Device, instant in Unix milliseconds, metric.
pub(crate) type Identity = (Arc<str>, i64, &'static str);

/// Which of several values of one identity the store must keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The last one written.
    Last,
    /// Any of them: time-series mode keeps the first that reaches the store, and the writes of two instances
    /// have no common order.
    OneOfThem,
}

/// The outcome of a write, as the sender knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The sender got no answer: the value may be stored or not.
    Unknown,
    Acked,
    Refused,
}

#[derive(Debug, Clone, Copy)]
struct Write {
    value: f64,
    outcome: Outcome,
}

/// The writes of all clients.
#[derive(Debug)]
pub(crate) struct History {
    rule: Rule,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The writes of each identity, in the order in which they were sent.
    writes: BTreeMap<Identity, Vec<Write>>,
    totals: Totals,
}

/// Counts over a whole fault test.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    /// Acknowledged readings; one that is acknowledged twice counts twice.
    pub(crate) acked: u64,
    /// Requests that the server refused temporarily.
    pub(crate) refused_requests: u64,
    /// Requests without an answer.
    pub(crate) unanswered: u64,
    /// The longest time from the first attempt of a request to its acknowledgement.
    pub(crate) longest_stall: Duration,
}

/// A request in flight: the places of its writes in the history.
#[derive(Debug)]
pub(crate) struct Attempt(Vec<(Identity, usize)>);

impl History {
    /// Creates an empty history.
    pub(crate) fn new(rule: Rule) -> Self {
        Self { rule, state: Mutex::default() }
    }

    /// Records that a client sends a request, again or for the first time.
    pub(crate) fn begin(&self, batch: &Batch) -> Attempt {
        let mut state = self.state();
        let note = |sent: &Sent| {
            let outcome = if sent.bad { Outcome::Refused } else { Outcome::Unknown };
            sent.identities().map(move |(identity, value)| (identity, Write { value, outcome })).collect::<Vec<_>>()
        };
        let place = |(identity, write): (Identity, Write)| {
            let writes = state.writes.entry(identity.clone()).or_default();
            writes.push(write);
            (identity, writes.len() - 1)
        };
        Attempt(batch.iter().flat_map(note).map(place).collect())
    }

    /// Records that the server acknowledged the valid readings of a request, `stall` after the first attempt.
    pub(crate) fn acked(&self, attempt: &Attempt, readings: usize, stall: Duration) {
        let mut state = self.state();
        state.set_outcome(attempt, Outcome::Acked);
        state.totals.acked += readings as u64;
        state.totals.longest_stall = state.totals.longest_stall.max(stall);
    }

    /// Records that the server refused a request.
    pub(crate) fn refused(&self, attempt: &Attempt) {
        let mut state = self.state();
        state.set_outcome(attempt, Outcome::Refused);
        state.totals.refused_requests += 1;
    }

    /// Records that a request got no answer.
    pub(crate) fn unanswered(&self) {
        self.state().totals.unanswered += 1;
    }

    /// The counts so far.
    pub(crate) fn totals(&self) -> Totals {
        self.state().totals
    }

    /// The values of an identity that may be stored; `None` means that there may be none.
    pub(crate) fn allowed(&self, identity: &Identity) -> Vec<Option<f64>> {
        self.state().writes.get(identity).map_or_else(|| vec![None], |writes| allowed(self.rule, writes))
    }

    /// Forgets the writes of a device.
    pub(crate) fn forget(&self, device: &str) {
        self.state().writes.retain(|identity, _| *identity.0 != *device);
    }

    /// All identities that a client has sent.
    pub(crate) fn identities(&self) -> Vec<Identity> {
        self.state().writes.keys().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it was held")
    }
}

impl State {
    fn set_outcome(&mut self, attempt: &Attempt, outcome: Outcome) {
        for (identity, at) in &attempt.0 {
            let write = &mut self.writes.get_mut(identity).expect("begin recorded it")[*at];
            if write.outcome == Outcome::Unknown {
                write.outcome = outcome;
            }
        }
    }
}

fn allowed(rule: Rule, writes: &[Write]) -> Vec<Option<f64>> {
    let last_acked = writes.iter().rposition(|write| write.outcome == Outcome::Acked);
    let from = if rule == Rule::Last { last_acked.unwrap_or(0) } else { 0 };
    let candidates = writes[from..].iter().filter(|write| write.outcome != Outcome::Refused);
    let mut allowed: Vec<_> = candidates.map(|write| Some(write.value)).collect();
    if last_acked.is_none() {
        allowed.push(None);
    }
    allowed
}

#[test]
fn allowed_values_follow_from_the_outcomes() {
    use Outcome::{Acked, Refused, Unknown};
    let of = |rule, outcomes: &[Outcome]| {
        let write = |(at, outcome): (usize, &Outcome)| Write { value: at as f64, outcome: *outcome };
        allowed(rule, &outcomes.iter().enumerate().map(write).collect::<Vec<_>>())
    };
    assert_eq!(of(Rule::Last, &[Acked, Acked]), [Some(1.0)]);
    assert_eq!(of(Rule::Last, &[Acked, Unknown, Refused]), [Some(0.0), Some(1.0)]);
    assert_eq!(of(Rule::Last, &[Unknown, Acked, Refused]), [Some(1.0)]);
    assert_eq!(of(Rule::Last, &[Unknown, Refused]), [Some(0.0), None]);
    assert_eq!(of(Rule::Last, &[Refused]), [None]);
    assert_eq!(of(Rule::OneOfThem, &[Unknown, Acked, Refused, Acked]), [Some(0.0), Some(1.0), Some(3.0)]);
    assert_eq!(of(Rule::OneOfThem, &[Refused, Unknown]), [Some(1.0), None]);
}
