//! What became of each write, as its sender knows it, and so what may be stored.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::workload::{Batch, Sent};

/// The metrics of the readings.
pub(crate) const METRICS: [&str; 2] = ["a", "b"];

/// Device, instant in Unix milliseconds, metric.
pub(crate) type Identity = (Arc<str>, i64, &'static str);

/// Which of several values of one identity has to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The last one written.
    Last,
    /// One of them: time-series mode keeps the first that reaches the store, and between two instances nobody
    /// can say which came last.
    OneOfThem,
}

/// What the sender knows of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No answer came: it may be stored or not.
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
pub(crate) struct Ledger {
    rule: Rule,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// The writes of each identity, in the order in which they were sent.
    writes: BTreeMap<Identity, Vec<Write>>,
    totals: Totals,
}

/// Counts over a whole siege.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    /// Readings that were acknowledged, each time they were.
    pub(crate) acked: u64,
    /// Requests that were refused as a whole, for now.
    pub(crate) refused_requests: u64,
    /// Requests that got no answer.
    pub(crate) unanswered: u64,
    /// The longest time from the first try of a request to its acknowledgement.
    pub(crate) longest_stall: Duration,
}

/// A request that is under way: where its writes stand in the ledger.
#[derive(Debug)]
pub(crate) struct Attempt(Vec<(Identity, usize)>);

impl Ledger {
    /// An empty ledger.
    pub(crate) fn new(rule: Rule) -> Self {
        Self { rule, book: Mutex::default() }
    }

    /// Notes that a request is sent, again or for the first time.
    pub(crate) fn begin(&self, batch: &Batch) -> Attempt {
        let mut book = self.book();
        let note = |sent: &Sent| {
            let outcome = if sent.bad { Outcome::Refused } else { Outcome::Unknown };
            sent.identities().map(move |(identity, value)| (identity, Write { value, outcome })).collect::<Vec<_>>()
        };
        let place = |(identity, write): (Identity, Write)| {
            let writes = book.writes.entry(identity.clone()).or_default();
            writes.push(write);
            (identity, writes.len() - 1)
        };
        Attempt(batch.iter().flat_map(note).map(place).collect())
    }

    /// Notes that the good readings of a request were acknowledged, `stall` after its first try.
    pub(crate) fn acked(&self, attempt: &Attempt, readings: usize, stall: Duration) {
        let mut book = self.book();
        book.settle(attempt, Outcome::Acked);
        book.totals.acked += readings as u64;
        book.totals.longest_stall = book.totals.longest_stall.max(stall);
    }

    /// Notes that a request was refused as a whole.
    pub(crate) fn refused(&self, attempt: &Attempt) {
        let mut book = self.book();
        book.settle(attempt, Outcome::Refused);
        book.totals.refused_requests += 1;
    }

    /// Notes that no answer came.
    pub(crate) fn unanswered(&self) {
        self.book().totals.unanswered += 1;
    }

    /// The counts so far.
    pub(crate) fn totals(&self) -> Totals {
        self.book().totals
    }

    /// The values that may be stored of an identity, `None` standing for none at all.
    pub(crate) fn allowed(&self, identity: &Identity) -> Vec<Option<f64>> {
        self.book().writes.get(identity).map_or_else(|| vec![None], |writes| allowed(self.rule, writes))
    }

    /// Forgets the writes of a device.
    pub(crate) fn forget(&self, device: &str) {
        self.book().writes.retain(|identity, _| *identity.0 != *device);
    }

    /// All identities that were ever sent.
    pub(crate) fn identities(&self) -> Vec<Identity> {
        self.book().writes.keys().cloned().collect()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no panic while it was held")
    }
}

impl Book {
    fn settle(&mut self, attempt: &Attempt, outcome: Outcome) {
        for (identity, at) in &attempt.0 {
            let write = &mut self.writes.get_mut(identity).expect("it was noted")[*at];
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
fn what_may_be_stored_follows_from_the_answers() {
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
