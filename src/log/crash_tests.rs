//! The log on a disk that tears, forgets and fails: whatever happens in whatever order, the log keeps its
//! promises.
//!
//! The writer runs when the test says so, so a failure repeats itself exactly.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::committer::Committer;
use super::{AppendError, Batch, BatchBuilder, Instruments, Log, LogError, MinFree, Options, Position, Recovery, Sync};
use crate::disk::Folder;
use crate::disk::faulty::{Call, Disk};

/// An interval that never ends by itself: [`Step::Tick`] ends it.
const INTERVAL: Duration = Duration::from_secs(1 << 40);

#[derive(Debug, Clone)]
enum Step {
    /// Appends a group of batches of so many readings.
    Append(Vec<u8>),
    /// The interval is over, if the log syncs in intervals.
    Tick,
    /// Cuts behind one of the records that can be read.
    Cut(prop::sample::Index),
    /// Saves the durable end, and cuts nothing.
    SaveEnd,
    /// Opens the log anew, after one of the ways in which a life ends, with segments of such a size.
    Restart(End, u64),
    /// The next call of this kind fails.
    Fail(Call),
    /// The disk has room for so many bytes more.
    Room(u64),
    /// Writes take no more bytes than this at once.
    ShortWrites(usize),
    /// The power fails after so many calls more.
    PowerFailsAfter(u32),
    /// All is well.
    Heal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The log is closed in order.
    Close,
    /// The process is gone, the system goes on.
    Kill,
    /// The power fails.
    Crash,
}

/// What holds for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Promise {
    /// Nobody knows whether it is in the log.
    None,
    /// It is in the log as long as the system lives.
    Process,
    /// It is in the log.
    Power,
}

/// The log, and what it must hold.
struct World {
    disk: Disk,
    sync: Sync,
    log: Log,
    committer: Committer,
    /// Where reading starts, and how many of the records stand before it.
    start: (Position, usize),
    /// What was appended, in order, from the last cut on.
    records: Vec<(Batch, Promise)>,
    /// How many of the first records may have been cut away by a cut that failed.
    maybe_cut: Vec<usize>,
    /// Something other than the want of room has failed in this life.
    has_failed: bool,
    next_id: u32,
}

fn batch(id: u32, readings: u8) -> Batch {
    let mut builder = BatchBuilder::default();
    for reading in 0..=i64::from(readings) {
        builder.push(&format!("device-{id}"), None, reading, [("m", f64::from(id))].into_iter()).unwrap();
    }
    builder.finish()
}

fn open(disk: &Disk, sync: Sync, segment_bytes: u64) -> Result<(Log, Committer, Recovery), LogError> {
    let min_free = MinFree::Bytes(0);
    let options = Options { dir: disk.path().to_owned(), sync, segment_bytes, max_bytes: 1 << 20, min_free };
    Log::assemble(Arc::new(disk.clone()), options, Instruments::default())
}

impl World {
    fn new(seed: u64, sync: Sync) -> Self {
        let disk = Disk::new(seed);
        let (log, committer, recovery) = open(&disk, sync, 300).unwrap();
        let start = (recovery.start, 0);
        let (records, maybe_cut) = (Vec::new(), Vec::new());
        Self { disk, sync, log, committer, start, records, maybe_cut, has_failed: false, next_id: 0 }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Append(sizes) => self.append(sizes),
            Step::Tick if self.sync != Sync::Always => self.tick(),
            Step::Tick => {}
            Step::Cut(place) => self.cut(*place),
            Step::SaveEnd => {
                let saved = self.log.cut(Position::default());
                assert!(saved.is_ok() || self.has_failed || !self.disk.is_sound(), "{saved:?}");
            }
            Step::Restart(end, segment_bytes) => self.restart(*end, *segment_bytes),
            Step::Fail(call) => {
                self.disk.fail(*call);
                self.has_failed = true;
            }
            Step::Room(bytes) => self.disk.set_free_bytes(*bytes),
            Step::ShortWrites(bytes) => self.disk.set_max_write(*bytes),
            Step::PowerFailsAfter(calls) => {
                self.disk.cut_power_after(*calls);
                self.has_failed = true;
            }
            Step::Heal if self.disk.has_no_power() => self.restart(End::Crash, 300),
            Step::Heal => self.disk.heal(),
        }
    }

    fn append(&mut self, sizes: &[u8]) {
        let was_poisoned = self.log.poisoned().is_some();
        let batches: Vec<_> = sizes.iter().map(|&size| batch(self.next_id(), size)).collect();
        let sent: Vec<_> = batches.iter().map(|batch| self.log.append(batch.clone())).collect();
        if sent.iter().any(Result::is_ok) {
            let group = self.committer.next_group().expect("something is queued");
            self.committer.commit(group);
        }
        for (batch, sent) in batches.into_iter().zip(sent) {
            let outcome = sent.and_then(super::Ack::wait);
            assert!(
                !was_poisoned || matches!(outcome, Err(AppendError::Poisoned(_))),
                "a poisoned log says {outcome:?}"
            );
            match outcome {
                Ok(()) if self.sync == Sync::Always => self.records.push((batch, Promise::Power)),
                Ok(()) => self.records.push((batch, Promise::Process)),
                Err(AppendError::DiskFull) => assert!(!self.disk.is_sound(), "the disk is not full"),
                Err(AppendError::Poisoned(_)) if self.has_failed => self.records.push((batch, Promise::None)),
                Err(error) => panic!("nothing has failed, and still: {error}"),
            }
        }
    }

    fn tick(&mut self) {
        self.committer.commit(Vec::new());
        if self.log.poisoned().is_none() {
            self.records.iter_mut().for_each(|(_, promise)| *promise = Promise::Power);
        }
        assert!(self.has_failed || self.log.poisoned().is_none());
    }

    fn cut(&mut self, place: prop::sample::Index) {
        let readable = self.log.usage().readable;
        let mut reader = self.log.reader(self.start.0);
        let read = self.start.1;
        let known = self.records.iter().filter(|(_, promise)| *promise > Promise::None).count();
        let count = read + place.index(known - read + 1);
        for (expected, _) in &self.records[read..count] {
            match reader.next(readable) {
                Ok(record) => assert_eq!(record.expect("readable").payload, expected.payload()),
                Err(LogError::Io { .. }) if self.has_failed => return,
                Err(error) => panic!("reading what was acked: {error}"),
            }
        }
        self.start = (reader.position(), count);
        let durable = self.records.iter().filter(|(_, promise)| *promise == Promise::Power).count();
        match self.log.cut(reader.position()) {
            Ok(()) if count <= durable => {
                self.records.drain(..count);
                self.start.1 = 0;
                self.maybe_cut.clear();
            }
            // What is not synced stays, and where that begins the next start tells.
            Ok(()) => self.maybe_cut.extend(durable..=count),
            Err(error) => {
                assert!(!self.disk.is_sound() || self.has_failed, "{error}");
                self.maybe_cut.extend(durable.min(count)..=count);
            }
        }
    }

    fn restart(&mut self, end: End, segment_bytes: u64) {
        if end == End::Close && self.log.poisoned().is_none() {
            self.committer.commit(Vec::new()); // what closing does
            if self.log.poisoned().is_none() {
                self.records.iter_mut().for_each(|(_, promise)| *promise = Promise::Power);
            }
        }
        let mut system_lives = end != End::Crash && !self.disk.has_no_power();
        let opened = loop {
            if !system_lives {
                self.disk.heal();
                self.disk.crash();
            }
            match open(&self.disk, self.sync, segment_bytes) {
                Ok(opened) => break opened,
                Err(LogError::Io { .. }) if !self.disk.is_sound() || self.has_failed => {}
                Err(error) => panic!("does not open: {error}"),
            }
            system_lives &= !self.disk.has_no_power();
            if system_lives {
                self.disk.heal();
                self.has_failed = false;
            }
        };
        self.check(opened, system_lives);
    }

    fn check(&mut self, (log, committer, recovery): (Log, Committer, Recovery), system_lived: bool) {
        // The disk may still be about to fail: this is only a look, with eyes that do not fail.
        let mut reader = log.reader(recovery.start);
        let mut found = Vec::new();
        self.disk.heal();
        while let Some(record) = reader.next(recovery.end).expect("readable") {
            found.push(record.payload.to_vec());
        }
        let is_there = |promise| if system_lived { promise > Promise::None } else { promise == Promise::Power };
        let promised = self.records.iter().rposition(|(_, promise)| is_there(*promise)).map_or(0, |last| last + 1);
        let all: Vec<&[u8]> = self.records.iter().map(|(batch, _)| batch.payload()).collect();
        self.maybe_cut.push(0);
        let cut = self.maybe_cut.iter().copied().find(|&cut| {
            let end = cut + found.len();
            promised <= end && all.get(cut..end).is_some_and(|range| range.iter().zip(&found).all(|(a, b)| a == b))
        });
        let Some(cut) = cut else {
            let place = |payload: &Vec<u8>| all.iter().position(|other| other == payload);
            let found: Vec<_> = found.iter().map(place).collect();
            panic!("of {} records {promised} are promised, found are {found:?}", all.len());
        };
        self.records.drain(..cut);
        self.records.truncate(found.len());
        self.records.iter_mut().for_each(|(_, promise)| *promise = Promise::Power);
        let readings: u64 = self.records.iter().map(|(batch, _)| u64::from(batch.readings())).sum();
        assert_eq!(recovery.readings, readings);
        self.maybe_cut.clear();
        (self.log, self.committer, self.start) = (log, committer, (recovery.start, 0));
        self.has_failed = false;
    }

    fn next_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }
}

fn any_call() -> impl Strategy<Value = Call> {
    use Call::*;
    prop::sample::select(vec![Names, Open, Rename, Remove, SyncNames, Read, Write, SetLen, Sync, Sync])
}

fn any_step() -> impl Strategy<Value = Step> {
    let end = prop::sample::select(vec![End::Close, End::Kill, End::Crash, End::Crash]);
    let segment_bytes = prop::sample::select(vec![33, 200, 300, 1000]);
    prop_oneof![
        10 => prop::collection::vec(0..6u8, 1..5).prop_map(Step::Append),
        2 => Just(Step::Tick),
        3 => any::<prop::sample::Index>().prop_map(Step::Cut),
        3 => Just(Step::SaveEnd),
        4 => (end, segment_bytes).prop_map(|(end, bytes)| Step::Restart(end, bytes)),
        1 => any_call().prop_map(Step::Fail),
        1 => (0..400u64).prop_map(Step::Room),
        1 => (1..40usize).prop_map(Step::ShortWrites),
        1 => (0..30u32).prop_map(Step::PowerFailsAfter),
        2 => Just(Step::Heal),
    ]
}

fn run(seed: u64, sync: Sync, steps: &[Step]) {
    let mut world = World::new(seed, sync);
    for step in steps {
        world.step(step);
    }
    world.restart(End::Crash, 300);
    world.append(&[1, 2, 3]);
    world.restart(End::Crash, 300);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn what_was_acked_is_there_in_order_after_whatever_happens_and_what_was_refused_is_not(
        seed in any::<u64>(), steps in prop::collection::vec(any_step(), 1..40)
    ) {
        run(seed, Sync::Always, &steps);
    }

    #[test]
    fn with_interval_sync_the_death_of_the_process_takes_nothing_and_of_the_power_only_what_was_not_synced(
        seed in any::<u64>(), steps in prop::collection::vec(any_step(), 1..40)
    ) {
        run(seed, Sync::Every(INTERVAL), &steps);
    }
}

/// Does the same on many disks with whims of their own.
fn on_many_disks(sync: Sync, steps: &[Step]) {
    (0..300).for_each(|seed| run(seed, sync, steps));
}

#[test]
fn what_was_refused_for_want_of_room_does_not_come_back_when_the_power_fails() {
    on_many_disks(Sync::Always, &[Step::Room(124), Step::Append(vec![3]), Step::Append(vec![0, 0])]);
}

#[test]
fn a_log_that_was_poisoned_while_it_made_a_segment_goes_on_in_one_that_survives() {
    let append = |sizes: &[u8]| Step::Append(sizes.to_vec());
    let (fail, restart) = (Step::Fail(Call::SyncNames), Step::Restart(End::Kill, 33));
    on_many_disks(Sync::Always, &[append(&[5, 1]), fail, append(&[0]), restart, append(&[0])]);
}

#[test]
fn what_is_found_after_a_failed_sync_is_durable_before_anything_is_written_behind_it() {
    let append = || Step::Append(vec![0]);
    let (fail, restart) = (Step::Fail(Call::Sync), Step::Restart(End::Kill, 300));
    on_many_disks(Sync::Always, &[append(), fail, append(), restart.clone(), append(), restart, append()]);
}

#[test]
fn what_a_killed_process_left_unsynced_is_durable_once_the_log_is_open_again() {
    let append = || Step::Append(vec![0]);
    let restart = Step::Restart(End::Kill, 33);
    on_many_disks(Sync::Every(INTERVAL), &[append(), append(), restart, append(), append()]);
}

#[test]
fn a_power_cut_at_any_call_leaves_a_log_that_opens() {
    for sync in [Sync::Always, Sync::Every(INTERVAL)] {
        for (seed, calls) in (0..30).flat_map(|seed| (0..60).map(move |calls| (seed, calls))) {
            let mut world = World::new(seed, sync);
            world.append(&[0, 1]);
            world.disk.cut_power_after(calls);
            world.has_failed = true;
            for _ in 0..4 {
                world.append(&[2, 0]); // a new segment at every second one
                world.step(&Step::SaveEnd);
                world.step(&Step::Tick);
            }
            world.restart(End::Crash, 300);
        }
    }
}

#[test]
fn a_cut_never_goes_back_behind_an_earlier_one() {
    let mut world = World::new(0, Sync::Always);
    (0..6).for_each(|_| world.append(&[0, 0]));
    let (start, end) = (world.start.0, world.log.usage().readable);
    world.log.cut(end).unwrap();
    world.log.cut(start).unwrap();
    let (log, _, recovery) = open(&world.disk, Sync::Always, 300).unwrap();
    assert_eq!((recovery.start, recovery.readings), (end, 0));
    assert_eq!(log.usage().bytes, world.log.usage().bytes);
}

#[test]
fn a_start_removes_nothing_for_a_checkpoint_that_a_killed_process_left_unsynced() {
    for (seed, calls) in (0..60).flat_map(|seed| (0..40).map(move |calls| (seed, calls))) {
        let mut world = World::new(seed, Sync::Always);
        (0..6).for_each(|_| world.append(&[0, 0]));
        world.disk.fail(Call::Sync);
        world.log.cut(world.log.usage().readable).unwrap_err();
        world.maybe_cut.push(world.records.len());
        world.disk.cut_power_after(calls);
        world.restart(End::Kill, 300);
    }
}

#[test]
fn a_log_that_has_filled_its_disk_can_be_opened_and_cut() {
    let mut world = World::new(0, Sync::Always);
    (0..6).for_each(|_| world.append(&[0, 0]));
    world.disk.set_free_bytes(0);
    let (log, ..) = open(&world.disk, Sync::Always, 300).unwrap();
    for position in [world.start.0, log.usage().readable] {
        log.cut(position).unwrap();
    }
    assert!(log.usage().bytes < world.log.usage().bytes);
}

#[test]
fn a_log_without_file_descriptors_refuses_and_goes_on_once_it_has_some() {
    let mut world = World::new(0, Sync::Always);
    world.append(&[5, 5, 5]); // more than a segment
    world.disk.run_out_of_files();
    let refused = |world: &mut World| {
        let ack = world.log.append(batch(0, 0)).unwrap();
        let group = world.committer.next_group().unwrap();
        world.committer.commit(group);
        ack.wait().unwrap_err()
    };
    for _ in 0..3 {
        assert_eq!(refused(&mut world), AppendError::OutOfFiles);
    }
    assert_eq!((world.log.poisoned(), world.log.usage().is_disk_full), (None, true));
    world.disk.heal();
    world.append(&[1, 2]);
    world.restart(End::Crash, 300);
}

#[test]
fn the_log_refuses_below_its_reserve_and_ends_the_segment_so_that_all_can_be_cut() {
    let (disk, min_free) = (Disk::new(0), MinFree::Bytes(1 << 20));
    let options = Options {
        dir: disk.path().to_owned(),
        sync: Sync::Always,
        segment_bytes: 1 << 20,
        max_bytes: 1 << 30,
        min_free,
    };
    let (log, mut committer, _) = Log::assemble(Arc::new(disk.clone()), options, Instruments::default()).unwrap();
    let mut append = |log: &Log| {
        let ack = log.append(batch(0, 3))?;
        committer.commit(committer.next_group().unwrap());
        ack.wait()
    };
    disk.set_free_bytes((1 << 20) + 300_000);
    append(&log).unwrap();
    let mut appended = 1;
    while append(&log).is_ok() {
        appended += 1;
    }
    assert_eq!(append(&log), Err(AppendError::DiskFull));
    assert!(appended > 1000 && log.usage().is_disk_full, "{appended} records");
    log.check_disk();
    committer.commit(committer.next_group().unwrap());
    log.cut(log.usage().readable).unwrap();
    assert!(log.usage().bytes < 100, "only the header of a new segment is left: {} bytes", log.usage().bytes);
    log.check_disk();
    assert!(log.usage().is_disk_full, "nothing was given back yet: this disk keeps the space of removed files");
    disk.set_free_bytes((1 << 20) + 600_000);
    log.check_disk();
    assert!(!log.usage().is_disk_full);
    log.append(batch(0, 3)).unwrap();
}

#[test]
fn a_log_that_cannot_be_read_does_not_open_and_is_whole_when_it_can_be_read_again() {
    for call in [Call::Names, Call::Open, Call::Read, Call::Sync, Call::SyncNames] {
        let mut world = World::new(0, Sync::Always);
        (0..6).for_each(|_| world.append(&[0, 0]));
        world.disk.fail(call);
        let refused = open(&world.disk, Sync::Always, 300).unwrap_err();
        assert!(matches!(refused, LogError::Io { .. }), "{call:?}: {refused}");
        world.restart(End::Crash, 300);
        assert_eq!(world.records.len(), 12);
    }
}
