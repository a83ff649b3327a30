//! Deletions: they remove pending readings, and wait here until the store has executed them.
//!
//! A deletion removes what precedes it in the log and nothing that follows. The feeder is the only one who
//! inserts readings, so when it reaches a deletion, all that precedes it is in pending or in the store:
//!
//! - **Open buckets** of the deletion's hours lose the readings that it selects. The feeder reads a snapshot
//!   of each such bucket without the lock, and puts back the readings that stay ([`Pending::erase`]). If the
//!   bucket has been taken meanwhile, it is in flight.
//! - **Buckets in flight** are written as they are. The store executes the deletion after these writes
//!   ([`Pending::next_deletion`]).
//! - **Parked buckets** wait for room in the dead-letter file, and no deletion waits for them. When it is
//!   executed, they lose the readings that it selects ([`Pending::erase_parked`]).
//! - **Later readings** of the deletion's hours must not be stored before the store has executed it, or the
//!   store would remove them too. So from the beginning of the deletion ([`Pending::begin_deletion`]) to its
//!   end ([`Pending::finish_deletion`]), all open buckets of its hours are blocked.
//!
//! The log is not cut behind a deletion, nor behind a bucket that it blocks. Deletions are executed one after
//! the other, in the order of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::slots::Key;
use super::{ITEMS_PER_TURN, Pending, PendingHour};
use crate::log::{BegunDeletion, Position};
use crate::model::{BucketWrite, Deletion, Hour, HourOffset};

/// The instants at which pending readings have lost a value, by hour, ascending.
pub type Erased = BTreeMap<Hour, Vec<HourOffset>>;

/// A deletion that the store has not executed.
#[derive(Debug)]
pub(super) struct PendingDeletion {
    begun: BegunDeletion,
    unanswered: Arc<BTreeSet<Hour>>,
    hours: Range<Hour>,
    /// The log is needed from here on: from the deletion, or from the oldest reading in a bucket that it
    /// blocks.
    position: Position,
    /// When the deletion, or the oldest reading in a bucket that it blocks, was inserted.
    since_ms: u64,
    erased: Arc<Erased>,
    progress: Progress,
}

/// How far the execution of a deletion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The feeder removes the selected readings from open buckets.
    Erases,
    /// The deletion waits for writes in flight of this hour and later ones.
    WaitsFrom(Hour),
    /// The store has executed the deletion.
    ///
    /// Buckets of this hour and later ones may still be blocked.
    UnblocksFrom(Hour),
}

/// The first deletion, if it can be executed now.
#[derive(Debug)]
pub enum NextDeletion {
    /// No deletion can be executed now.
    ///
    /// There is none, the feeder still removes readings from open buckets, or a write of the first one's
    /// hours is in flight.
    None,
    /// More work under the lock is needed to tell. Ask again.
    Again,
    /// No write of the deletion's hours is in flight.
    ///
    /// None begins before the deletion is finished.
    Ready(DeletionStep),
}

/// A deletion for the store.
#[derive(Debug, Clone)]
pub struct DeletionStep {
    /// The deletion, as the log has it.
    pub begun: BegunDeletion,
    /// Hours with readings that the replay has left out, or has inserted before the deletion removed them.
    ///
    /// An earlier process may have sent writes of them, which no write of this process repeats.
    pub unanswered: Arc<BTreeSet<Hour>>,
    /// The pending readings that have lost a value.
    pub erased: Arc<Erased>,
}

impl Pending {
    /// Adds a deletion, before the readings that follow it in the log.
    ///
    /// From now on, each new bucket of its hours is blocked.
    pub fn begin_deletion(
        &mut self,
        begun: BegunDeletion,
        unanswered: BTreeSet<Hour>,
        position: Position,
        now_ms: u64,
    ) {
        let (hours, unanswered) = (begun.deletion.hours(), Arc::new(unanswered));
        let (since_ms, erased, progress) = (now_ms, Arc::default(), Progress::Erases);
        self.deletions.push_back(PendingDeletion { begun, unanswered, hours, position, since_ms, erased, progress });
    }

    /// Removes the readings of one hour that the deletion selects, and blocks the rest of the bucket.
    ///
    /// The caller has made `erasure` from a snapshot that was taken after the deletion began, and has
    /// inserted nothing since. Returns the number of removed readings, and memory to be dropped without the
    /// lock.
    pub fn erase(&mut self, id: u64, device: &str, erasure: HourErasure) -> (u64, impl Sized + use<>) {
        let HourErasure { hour, left } = erasure;
        let Some(device) = self.find_device(device) else { return (0, None) };
        let Some(slot) = self.devices[device].hours.find_mut(hour) else { return (0, None) };
        let Some(bucket) = slot.open else { return (0, None) };
        let is_only = slot.in_flight.is_none();
        if !std::mem::replace(&mut self.open[bucket].is_blocked, true) {
            self.by_age.remove(&mut self.open, bucket);
            self.full.retain(|full| *full != bucket);
        }
        let Some(deletion) = self.deletions.iter_mut().find(|pending| pending.begun.id == id) else {
            return (0, None);
        };
        deletion.position = deletion.position.min(self.open[bucket].position);
        deletion.since_ms = deletion.since_ms.min(self.open[bucket].since_ms);
        let Some(mut left) = left else { return (0, None) };
        let open = &mut self.open[bucket];
        let (bytes, accepted, stays) = (open.bytes(), open.accepted, left.accepted > 0);
        let removed = u64::from(accepted - left.accepted);
        if open.position < self.replay_end {
            Arc::make_mut(&mut deletion.unanswered).insert(hour);
        }
        Arc::make_mut(&mut deletion.erased).insert(hour, std::mem::take(&mut left.erased));
        self.readings -= removed;
        let before = open.replace(left);
        let is_crowded = open.values() >= self.max_values;
        self.bytes = self.bytes - bytes + open.bytes();
        self.crowded.retain(|crowded| *crowded != bucket || is_crowded);
        if !stays {
            self.bytes -= self.open[bucket].bytes();
            self.open.remove(bucket);
            if is_only {
                self.devices[device].hours.remove(hour);
                if self.devices[device].hours.is_empty() {
                    self.remove_device(device);
                }
            } else if let Some(slot) = self.devices[device].hours.find_mut(hour) {
                slot.open = None;
            }
        }
        (removed, Some(before))
    }

    /// Notes that all open buckets have lost the readings that a deletion removes.
    pub fn end_erasure(&mut self, id: u64) {
        if let Some(deletion) = self.deletions.iter_mut().find(|pending| pending.begun.id == id) {
            deletion.progress = Progress::WaitsFrom(deletion.hours.start);
        }
    }

    /// Removes the readings of a parked bucket that a deletion selects. The rest stays parked.
    ///
    /// Returns memory to be dropped without the lock.
    pub fn erase_parked(&mut self, write: &BucketWrite, erasure: HourErasure) -> Option<impl Sized + use<>> {
        let left = erasure.left?;
        let parked = self.taken_mut(write);
        let bucket = Arc::new(parked.bucket.with(left));
        let removed = parked.bucket.accepted - bucket.accepted;
        let before = std::mem::replace(&mut parked.bucket, bucket);
        self.readings -= u64::from(removed);
        Some(before)
    }

    /// Returns the first deletion once no write of its hours is in flight.
    pub fn next_deletion(&mut self) -> NextDeletion {
        let Some(first) = self.deletions.front() else { return NextDeletion::None };
        let Progress::WaitsFrom(from) = first.progress else { return NextDeletion::None };
        let (until, mut next) = (first.hours.end, None);
        if let Some(device) = self.find_device(&first.begun.deletion.device) {
            let slots = self.devices[device].hours.from(from).take_while(|slot| slot.hour < until);
            for (at, slot) in slots.enumerate() {
                let is_in_flight = slot.in_flight.is_some_and(|taken| !self.in_flight[taken].is_parked);
                if is_in_flight || at >= ITEMS_PER_TURN {
                    next = Some((slot.hour, is_in_flight));
                    break;
                }
            }
        }
        let Some(first) = self.deletions.front_mut() else { return NextDeletion::None };
        match next {
            // No write of an earlier hour can begin, because the buckets are blocked.
            Some((hour, is_in_flight)) => {
                first.progress = Progress::WaitsFrom(hour);
                if is_in_flight { NextDeletion::None } else { NextDeletion::Again }
            }
            None => NextDeletion::Ready(DeletionStep {
                begun: first.begun.clone(),
                unanswered: Arc::clone(&first.unanswered),
                erased: Arc::clone(&first.erased),
            }),
        }
    }

    /// Ends the first deletion, after the store has executed it.
    ///
    /// Its buckets may be taken again. Returns whether the deletion is finished. If not, the caller has to
    /// call this again.
    pub fn finish_deletion(&mut self) -> bool {
        let Some(first) = self.deletions.front_mut() else { return true };
        let from = match first.progress {
            Progress::UnblocksFrom(from) => from,
            _ => first.hours.start,
        };
        first.progress = Progress::UnblocksFrom(from);
        let until = first.hours.end;
        let deletion = Arc::clone(&first.begun.deletion);
        let (mut blocked, mut next) = (Vec::new(), None);
        if let Some(device) = self.find_device(&deletion.device) {
            for slot in self.devices[device].hours.from(from).take_while(|slot| slot.hour < until) {
                if blocked.len() >= ITEMS_PER_TURN / 8 {
                    next = Some(slot.hour);
                    break;
                }
                // A write in flight blocks the open bucket too: the end of the write unblocks it.
                blocked.extend(slot.open.filter(|bucket| slot.in_flight.is_none() && self.open[*bucket].is_blocked));
            }
        }
        for bucket in blocked {
            self.unblock(bucket);
        }
        match (next, self.deletions.front_mut()) {
            (Some(hour), Some(first)) => first.progress = Progress::UnblocksFrom(hour),
            _ => _ = self.deletions.pop_front(),
        }
        next.is_none()
    }

    /// The number of deletions that the store has not executed.
    pub fn deletions(&self) -> usize {
        self.deletions.len()
    }

    /// Whether a deletion blocks the buckets of an hour.
    pub(super) fn is_deleting(&self, device: Key, hour: Hour) -> bool {
        let id = || self.devices[device].id.as_bytes();
        self.deletions.iter().any(|pending| {
            !matches!(pending.progress, Progress::UnblocksFrom(_))
                && pending.hours.contains(&hour)
                && pending.begun.deletion.device.as_bytes() == id()
        })
    }

    pub(super) fn deletion_positions(&self) -> impl Iterator<Item = Position> {
        self.deletions.iter().map(|pending| pending.position)
    }

    pub(super) fn deletions_since_ms(&self) -> impl Iterator<Item = u64> {
        self.deletions.iter().map(|pending| pending.since_ms)
    }
}

/// The readings that a deletion leaves in the open or the parked bucket of one hour.
///
/// Made without the lock.
#[derive(Debug)]
pub struct HourErasure {
    hour: Hour,
    /// The readings that stay; `None` if all of them stay.
    left: Option<super::bucket::Remaining>,
}

impl HourErasure {
    /// Computes the erasure from a snapshot. It reads all values of the open bucket.
    #[must_use]
    pub fn of(hour: &PendingHour, deletion: &Deletion) -> Self {
        Self { hour: hour.hour, left: hour.open.as_ref().and_then(|open| open.without(deletion)) }
    }

    /// Computes the erasure of a parked bucket. It reads all values of the bucket.
    #[must_use]
    pub fn of_parked(hour: &PendingHour, deletion: &Deletion) -> Self {
        Self { hour: hour.hour, left: hour.in_flight.as_ref().and_then(|parked| parked.without(deletion)) }
    }
}
