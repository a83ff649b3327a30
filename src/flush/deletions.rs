//! The book of deletions: how far each one is in this instance, and the answer to its client.
//!
//! ```text
//!  Logged ──────────> Executed ──────────> Announced ──────────> forgotten
//!         the deleter          the watcher           the watcher, once no
//!         has told others      has seen the note     instance is missing
//! ```
//! - A deletion begins as [`Stage::Logged`], or as [`Stage::Executed`] if the opened log says that it was
//!   executed.
//! - If no other instance executes it, it is forgotten when it is executed. So is a deletion of this instance
//!   that has failed in the store. A deletion that another instance has announced becomes
//!   [`Stage::Announced`] as soon as it is executed here.
//! - The client is answered when the deletion is forgotten, or before, if only silent instances are missing.
//!
//! Each step is durable elsewhere before the book has it: in the log, or in the notes of the store. So after
//! a crash the log and the notes lead to the same stages.
//!
//! Two facts about deletions are not in the book. [`crate::pending`] has the hours that a deletion blocks, at
//! the buckets and under their lock. [`super::replay`] has which deletions of the opened log were executed,
//! because the feeder may reach them after they are forgotten.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::log::{BegunDeletion, RecoveredDeletion};

/// The outcome of a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletionOutcome {
    /// The deletion is executed.
    Executed {
        /// The number of removed readings.
        readings: u64,
        /// The instances that did not run.
        ///
        /// They remove what they have when they start again.
        absent: Vec<Arc<str>>,
    },
    /// The deletion is durable, and will be executed.
    Accepted {
        /// The instances that run and have not executed the deletion yet.
        ///
        /// Empty: the store has not executed it yet.
        waits_for: Vec<Arc<str>>,
    },
    /// The store cannot execute the deletion, for this reason.
    Failed(String),
}

/// How far a deletion is in this instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    /// The log has the deletion, or is about to have it. The store has not executed it.
    Logged,
    /// The store has executed the deletion for this instance, and the log says so.
    ///
    /// Its note may not be visible yet.
    Executed { readings: u64 },
    /// The deletion is executed, and the watcher has seen its note in the store.
    ///
    /// Once this instance has tried to close the deletion, the fields have the outcome of all instances.
    Announced { readings: u64, absent: Vec<Arc<str>> },
}

/// The book of deletions.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    book: Mutex<Book>,
    /// Notifies the deleter that the feeder has reached a deletion.
    pub(super) reached: Notify,
    /// Notifies the watcher that a deletion was executed which other instances execute too.
    pub(super) executed: Notify,
}

#[derive(Debug, Default)]
struct Book {
    entries: HashMap<u64, Entry>,
    /// The deletions that the feeder has to know before it reaches them, and whether each is executed: those
    /// that the log had when it was opened, and those that this instance has missed.
    ahead: Vec<(BegunDeletion, bool)>,
}

#[derive(Debug)]
struct Entry {
    begun: BegunDeletion,
    stage: Stage,
    /// Whether the feeder has reached the deletion in the log, or is told of it before.
    is_known: bool,
    /// The instances that run and have not executed the deletion.
    waits_for: Vec<Arc<str>>,
    /// Takes the answer to the client.
    client: Option<oneshot::Sender<DeletionOutcome>>,
}

impl Deletions {
    /// Begins with the deletions of the opened log.
    pub(super) fn load(recovered: &[RecoveredDeletion]) -> Self {
        let deletions = Self::default();
        for RecoveredDeletion { begun, is_executed, .. } in recovered {
            deletions.add(begun, if *is_executed { Stage::Executed { readings: 0 } } else { Stage::Logged });
            deletions.tell_feeder(begun.id, *is_executed);
        }
        deletions
    }

    /// Adds a deletion, before it can be executed. Returns the receiver of the answer.
    pub(super) fn add(&self, begun: &BegunDeletion, stage: Stage) -> oneshot::Receiver<DeletionOutcome> {
        let (client, answer) = oneshot::channel();
        let (begun, client) = (begun.clone(), Some(client));
        let entry = Entry { begun, stage, is_known: false, waits_for: Vec::new(), client };
        self.lock().entries.insert(entry.begun.id, entry);
        answer
    }

    /// The number of deletions that are not executed here, whether or not the feeder has reached them.
    pub(super) fn waiting(&self) -> usize {
        self.lock().entries.values().filter(|entry| entry.stage == Stage::Logged).count()
    }

    /// Forgets a deletion that the log has not taken.
    pub(super) fn forget(&self, id: u64) {
        self.lock().entries.remove(&id);
    }

    /// Tells the feeder of a deletion of the log, unless it knows the deletion.
    pub(super) fn tell_feeder(&self, id: u64, is_executed: bool) {
        let mut book = self.lock();
        let Book { entries, ahead } = &mut *book;
        let Some(entry) = entries.get_mut(&id) else { return };
        if !std::mem::replace(&mut entry.is_known, true) {
            ahead.push((entry.begun.clone(), is_executed));
        }
    }

    /// Calls `take` with the deletions that the feeder is told of, and whether each is executed.
    pub(super) fn take_ahead(&self, mut take: impl FnMut(&BegunDeletion, bool)) {
        let ahead = self.lock().ahead.clone();
        for (begun, is_executed) in &ahead {
            take(begun, *is_executed);
        }
        self.lock().ahead.drain(..ahead.len()); // only now, because nothing may be stored before
    }

    /// Notes that the feeder has reached a deletion, and pending has lost what the deletion removes.
    pub(super) fn note_reached(&self, id: u64) {
        let mut book = self.lock();
        book.ahead.retain(|(begun, _)| begun.id != id);
        if let Some(entry) = book.entries.get_mut(&id) {
            entry.is_known = true;
        }
    }

    /// Whether pending may have readings that a missed deletion removes. They must not be stored.
    pub(super) fn has_missed(&self) -> bool {
        !self.lock().ahead.is_empty()
    }

    /// Notes that a deletion is executed here, with the number of removed readings, or that it has failed. If
    /// it `is_shared` with other instances, the watcher settles it. Otherwise its client is answered. So is
    /// the client of a deletion that has failed, because nothing that others do makes it a success.
    pub(super) fn note_executed(&self, begun: &BegunDeletion, executed: Result<u64, String>, is_shared: bool) {
        let (readings, absent) = (executed.as_ref().map_or(0, |readings| *readings), Vec::new());
        let is_own = begun.from.is_none();
        if !is_shared || is_own && executed.is_err() {
            let outcome = DeletionOutcome::Executed { readings, absent };
            return self.answer(begun.id, executed.map_or_else(DeletionOutcome::Failed, |_| outcome));
        }
        let stage = if is_own { Stage::Executed { readings } } else { Stage::Announced { readings, absent } };
        self.change(begun.id, |entry| entry.stage = stage);
        self.executed.notify_one();
    }

    /// Notes that the note of a deletion was seen.
    ///
    /// Returns the stage of the deletion; `None`: the log does not have it.
    pub(super) fn note_announced(&self, id: u64) -> Option<Stage> {
        let mut book = self.lock();
        let stage = &mut book.entries.get_mut(&id)?.stage;
        if let Stage::Executed { readings } = *stage {
            *stage = Stage::Announced { readings, absent: Vec::new() };
        }
        Some(stage.clone())
    }

    /// Notes which instances run and have not executed a deletion.
    ///
    /// If they `are_silent` (no beat of them was seen lately), answers the client.
    pub(super) fn note_waiting(&self, id: u64, waits_for: Vec<Arc<str>>, are_silent: bool) {
        self.change(id, |entry| {
            entry.waits_for.clone_from(&waits_for);
            if are_silent {
                entry.answer(DeletionOutcome::Accepted { waits_for });
            }
        });
    }

    /// The instances that run and have not executed a deletion.
    pub(super) fn waits_for(&self, id: u64) -> Vec<Arc<str>> {
        self.lock().entries.get(&id).map(|entry| entry.waits_for.clone()).unwrap_or_default()
    }

    /// Notes that this instance is about to close a deletion, with the outcome of all instances. If the store
    /// does not close it, the next attempt replaces the outcome.
    pub(super) fn note_closing(&self, id: u64, readings: u64, absent: Vec<Arc<str>>) {
        self.change(id, |entry| entry.stage = Stage::Announced { readings, absent });
    }

    /// Returns the announced deletions that are not open any more, with their devices and outcomes.
    pub(super) fn settled(&self, open: &BTreeSet<u64>) -> Vec<(u64, Arc<str>, DeletionOutcome)> {
        let book = self.lock();
        let settled = book.entries.iter().filter(|(id, _)| !open.contains(id)).filter_map(|(id, entry)| {
            let Stage::Announced { readings, absent } = entry.stage.clone() else { return None };
            let device = Arc::clone(&entry.begun.deletion.device);
            Some((*id, device, DeletionOutcome::Executed { readings, absent }))
        });
        settled.collect()
    }

    /// Answers the client of a deletion, and forgets the deletion.
    pub(super) fn answer(&self, id: u64, outcome: DeletionOutcome) {
        self.change(id, |entry| entry.answer(outcome));
        self.forget(id);
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            change(entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn answer(&mut self, outcome: DeletionOutcome) {
        if let Some(client) = self.client.take() {
            let _ = client.send(outcome); // the client may be gone
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Stage::{Announced, Executed, Logged};
    use super::*;
    use crate::model::{Deletion, SeriesFilter};

    use Event::{
        Closed, ExecutedAlone, ExecutedAmongOthers, FailedAlone, FailedAmongOthers, NotTaken, Seen, Settled,
        SettledWhileOpen,
    };

    const ID: u64 = 7;

    /// A deletion of this instance, or of another one.
    fn begun(from: Option<&str>) -> BegunDeletion {
        let deletion = Deletion { device: "d".into(), range_ms: None, series: SeriesFilter::ALL };
        BegunDeletion { id: ID, by: "me".into(), deletion: deletion.into(), from: from.map(Arc::from) }
    }

    fn recovered(from: Option<&str>, is_executed: bool) -> RecoveredDeletion {
        RecoveredDeletion { begun: begun(from), is_executed }
    }

    #[derive(Clone, Copy)]
    enum Event {
        ExecutedAlone,
        FailedAlone,
        ExecutedAmongOthers,
        FailedAmongOthers,
        Seen,
        Closed,
        SettledWhileOpen,
        Settled,
        NotTaken,
    }

    impl Event {
        fn happen(self, deletions: &Deletions, begun: &BegunDeletion) {
            let settle = |open: &[u64]| {
                for (id, device, outcome) in deletions.settled(&open.iter().copied().collect()) {
                    assert_eq!((id, &*device), (ID, "d"));
                    deletions.answer(id, outcome);
                }
            };
            match self {
                Self::ExecutedAlone => deletions.note_executed(begun, Ok(3), false),
                Self::FailedAlone => deletions.note_executed(begun, Err("no".to_owned()), false),
                Self::ExecutedAmongOthers => deletions.note_executed(begun, Ok(3), true),
                Self::FailedAmongOthers => deletions.note_executed(begun, Err("no".to_owned()), true),
                Self::Seen => assert_eq!(deletions.note_announced(ID), stage(deletions)),
                Self::Closed => deletions.note_closing(ID, 5, vec!["b".into()]),
                Self::SettledWhileOpen => settle(&[ID]),
                Self::Settled => settle(&[]),
                Self::NotTaken => deletions.forget(ID),
            }
        }
    }

    fn stage(deletions: &Deletions) -> Option<Stage> {
        deletions.lock().entries.get(&ID).map(|entry| entry.stage.clone())
    }

    /// Each row has the stage before, the event, and the stages after it of a deletion of this instance and
    /// of another one; `None`: it is forgotten.
    #[test]
    fn each_event_leads_from_each_stage_to_one_other() {
        let announced = |readings| Announced { readings, absent: Vec::new() };
        let closed = Announced { readings: 5, absent: vec!["b".into()] };
        let same = |stage: &Stage| [Some(stage.clone()), Some(stage.clone())];
        let [executed, seen] = [Executed { readings: 2 }, announced(2)];
        for (before, event, after) in [
            (&Logged, NotTaken, [None, None]),
            (&Logged, ExecutedAlone, [None, None]),
            (&Logged, FailedAlone, [None, None]),
            (&Logged, ExecutedAmongOthers, [Some(Executed { readings: 3 }), Some(announced(3))]),
            (&Logged, FailedAmongOthers, [None, Some(announced(0))]),
            (&Logged, Seen, same(&Logged)),
            (&Logged, Settled, same(&Logged)),
            (&executed, Seen, same(&seen)),
            (&executed, SettledWhileOpen, same(&executed)),
            (&executed, Settled, same(&executed)),
            (&seen, Seen, same(&seen)),
            (&seen, Closed, same(&closed)),
            (&seen, SettledWhileOpen, same(&seen)),
            (&seen, Settled, [None, None]),
            (&closed, SettledWhileOpen, same(&closed)),
            (&closed, Settled, [None, None]),
        ] {
            for (from, after) in [None, Some("other")].into_iter().zip(after) {
                let (deletions, begun) = (Deletions::default(), begun(from));
                drop(deletions.add(&begun, before.clone()));
                event.happen(&deletions, &begun);
                assert_eq!(stage(&deletions), after, "{before:?}, from {from:?}");
                for late in [ExecutedAlone, ExecutedAmongOthers, Seen, Closed, Settled, NotTaken] {
                    deletions.forget(ID);
                    late.happen(&deletions, &begun); // a forgotten deletion stays forgotten
                    assert_eq!(stage(&deletions), None);
                }
            }
        }
    }

    #[test]
    fn a_client_is_answered_once_and_with_what_is_known() {
        let both: Vec<Arc<str>> = vec!["a".into(), "b".into()];
        let alone = DeletionOutcome::Executed { readings: 3, absent: Vec::new() };
        let of_all = DeletionOutcome::Executed { readings: 5, absent: vec!["b".into()] };
        let failed = DeletionOutcome::Failed("no".to_owned());
        let accepted = DeletionOutcome::Accepted { waits_for: both.clone() };
        for (events, are_silent, expected) in [
            (&[ExecutedAlone][..], false, Some(alone.clone())),
            (&[FailedAlone], false, Some(failed.clone())),
            (&[FailedAmongOthers], false, Some(failed)),
            (&[NotTaken], false, None),
            (&[ExecutedAmongOthers, Seen, SettledWhileOpen], false, None),
            (&[ExecutedAmongOthers, Seen, SettledWhileOpen], true, Some(accepted.clone())),
            (&[ExecutedAmongOthers, Seen, Closed, Settled], true, Some(accepted)),
            (&[ExecutedAmongOthers, Seen, Settled], false, Some(alone)),
            (&[ExecutedAmongOthers, Seen, Closed, SettledWhileOpen], false, None),
            (&[ExecutedAmongOthers, Seen, Closed, Settled], false, Some(of_all)),
        ] {
            let (deletions, begun) = (Deletions::default(), begun(None));
            let mut answer = deletions.add(&begun, Logged);
            assert!(answer.try_recv().is_err(), "too early");
            assert_eq!(deletions.waits_for(ID), Vec::<Arc<str>>::new());
            deletions.note_waiting(ID, both.clone(), are_silent);
            assert_eq!(deletions.waits_for(ID), both);
            for event in events {
                event.happen(&deletions, &begun);
            }
            assert_eq!(answer.try_recv().ok(), expected);
        }
    }

    #[test]
    fn a_crash_leads_to_the_stage_that_the_log_says() {
        for from in [None, Some("other")] {
            for (is_executed, expected) in [(false, Logged), (true, Executed { readings: 0 })] {
                let deletions = Deletions::load(&[recovered(from, is_executed)]);
                assert_eq!(stage(&deletions), Some(expected), "from {from:?}");
                Settled.happen(&deletions, &begun(from));
                assert!(stage(&deletions).is_some(), "its note was not seen yet");
                if !is_executed {
                    ExecutedAmongOthers.happen(&deletions, &begun(from));
                }
                for event in [Seen, Settled] {
                    event.happen(&deletions, &begun(from));
                }
                assert_eq!(stage(&deletions), None);
                assert_eq!(ahead(&deletions), [(begun(from), is_executed)], "the feeder needs it nevertheless");
            }
        }
    }

    fn ahead(deletions: &Deletions) -> Vec<(BegunDeletion, bool)> {
        let mut ahead = Vec::new();
        deletions.take_ahead(|begun, is_executed| {
            assert!(deletions.has_missed(), "nothing is stored before the feeder is done");
            ahead.push((begun.clone(), is_executed));
        });
        ahead
    }

    #[test]
    fn the_feeder_is_told_once_of_a_missed_deletion_that_it_has_not_reached() {
        let missed = || {
            let deletions = Deletions::default();
            drop(deletions.add(&begun(Some("other")), Logged));
            deletions
        };
        let deletions = missed();
        for expected in [&[(begun(Some("other")), false)][..], &[]] {
            deletions.tell_feeder(ID, false);
            assert_eq!(ahead(&deletions), expected);
            assert!(!deletions.has_missed());
        }
        let deletions = missed();
        deletions.tell_feeder(ID, false);
        for _ in 0..2 {
            deletions.note_reached(ID);
            assert!(!deletions.has_missed(), "it needs to be told no more");
            deletions.tell_feeder(ID, false);
        }
        let deletions = missed();
        deletions.note_reached(ID);
        deletions.tell_feeder(ID, false);
        assert!(!deletions.has_missed(), "the feeder was quicker");
    }
}
