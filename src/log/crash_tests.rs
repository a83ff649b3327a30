//! The log on a disk that tears writes, forgets unsynced ones, and fails: random steps, checked against a
//! model.
//!
//! The test decides when the writer runs, so a failure repeats exactly.

mod scenarios;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use proptest::prelude::*;

use super::committer::Committer;
use super::{AppendError, Batch, BatchBuilder, Instruments, Log, LogError, MinFree, Options, Position, Recovery, Sync};
use crate::disk::Folder;
use crate::disk::faulty::{Call, Disk};

/// An interval that never ends by itself: [`Step::Tick`] ends it.
const INTERVAL: Duration = Duration::from_secs(1 << 40);

#[derive(Debug, Clone)]
enum Step {
    /// Appends a group of batches, with these numbers of readings.
    Append(Vec<u8>),
    /// Ends the interval, if the log syncs in intervals.
    Tick,
    /// Cuts behind one of the readable records.
    Cut(prop::sample::Index),
    /// Saves the durable end, and cuts nothing.
    SaveEnd,
    /// Ends the process in one of these ways, and opens the log with segments of this size.
    Restart(End, u64),
    /// Makes the next call of this kind fail.
    Fail(Call),
    /// Leaves this many bytes free on the disk.
    FreeBytes(u64),
    /// Lets this many changing calls pass, then lets this many fail for lack of space.
    FullFor(u32, u32),
    /// Checks the free space on the disk, as the flush does each second.
    CheckDisk,
    /// Makes and removes spares, as their thread does.
    Spares,
    /// Lets one write accept at most this many bytes.
    ShortWrites(usize),
    /// Cuts the power after this many more calls.
    PowerCutAfter(u32),
    /// Ends all faults.
    Heal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The log is closed.
    Close,
    /// The process is killed, and the system keeps running.
    Kill,
    /// The power is cut.
    Crash,
}

/// The promise of the log for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Promise {
    /// It is unknown whether the log has the record.
    None,
    /// The log has the record as long as the system keeps running.
    Process,
    /// The log has the record, even after a power cut.
    Power,
}

/// The log, and the records that it must have.
struct World {
    disk: Disk,
    sync: Sync,
    log: Log,
    committer: Committer,
    /// The position at which reading starts, and the number of records before it.
    start: (Position, usize),
    /// The appended records since the last cut, in order.
    records: Vec<(Batch, Promise)>,
    /// How many of the first records a failed cut may have removed.
    maybe_cut: Vec<usize>,
    /// A call has failed since the last start, for another reason than lack of space.
    has_failed: bool,
    next_id: u32,
}

pub(super) fn batch(id: u32, readings: u8) -> Batch {
    let mut builder = BatchBuilder::default();
    for reading in 0..=i64::from(readings) {
        builder.push(&format!("device-{id}"), None, reading, [("m", f64::from(id))].into_iter()).unwrap();
    }
    builder.finish()
}

fn open(disk: &Disk, sync: Sync, segment_bytes: u64) -> Result<(Log, Committer, Recovery), LogError> {
    let options = Options { sync, segment_bytes, max_bytes: 1 << 20, ..Options::of_test(disk.path()) };
    let (log, mut committer, recovery) = Log::assemble(Arc::new(disk.clone()), options, Instruments::default())?;
    committer.appender.lose_patience();
    Ok((log, committer, recovery))
}

/// Opens a new log on a sound disk in memory, for tests that run its writer in a thread.
pub(super) fn open_log(sync: Sync, group_window: Duration) -> (Log, Committer, Recovery) {
    let disk = Disk::new(0);
    let options = Options { sync, group_window, max_bytes: 1 << 20, ..Options::of_test(disk.path()) };
    Log::assemble(Arc::new(disk), options, Instruments::default()).unwrap()
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
            Step::FreeBytes(bytes) => self.disk.set_free_bytes(*bytes),
            Step::FullFor(after, calls) => {
                self.disk.fill_for(*after, *calls);
                self.has_failed = true;
            }
            Step::CheckDisk => self.log.check_disk(),
            Step::Spares => self.log.spares.work(),
            Step::ShortWrites(bytes) => self.disk.set_max_write(*bytes),
            Step::PowerCutAfter(calls) => {
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
                Err(error) => panic!("no call has failed, but: {error}"),
            }
        }
        assert_eq!(self.log.failed().now_or_never(), self.log.poisoned());
    }

    fn tick(&mut self) {
        self.committer.commit(Vec::new());
        if self.log.poisoned().is_none() {
            self.records.iter_mut().for_each(|(_, promise)| *promise = Promise::Power);
        }
        assert!(self.has_failed || self.log.poisoned().is_none());
    }

    /// The number of acknowledged records. The records without a promise are behind them.
    fn known(&self) -> usize {
        self.records.iter().filter(|(_, promise)| *promise > Promise::None).count()
    }

    /// Reads acknowledged records, up to `count` of all. `None` if a call was made to fail.
    fn read(&self, count: usize) -> Option<Position> {
        let readable = self.log.usage().readable;
        let mut reader = self.log.reader(self.start.0);
        for (expected, _) in &self.records[self.start.1..count] {
            match reader.next(readable) {
                Ok(record) => assert_eq!(record.expect("readable").payload, expected.payload()),
                Err(LogError::Io { .. }) if self.has_failed => return None,
                Err(error) => panic!("reading what was acked: {error}"),
            }
        }
        Some(reader.position())
    }

    /// Reads all acknowledged records on a sound disk, as the flush and the follower do.
    fn reads_what_it_acknowledged(&self) {
        assert!(self.disk.is_sound());
        self.read(self.known()).expect("a sound disk");
    }

    fn cut(&mut self, place: prop::sample::Index) {
        let read = self.start.1;
        let count = read + place.index(self.known() - read + 1);
        let Some(position) = self.read(count) else { return };
        self.start = (position, count);
        let durable = self.records.iter().filter(|(_, promise)| *promise == Promise::Power).count();
        match self.log.cut(position) {
            Ok(()) if count <= durable => {
                self.records.drain(..count);
                self.start.1 = 0;
                self.maybe_cut.clear();
            }
            // The log keeps unsynced records. The next start shows where they begin.
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
        let mut system_runs = end != End::Crash && !self.disk.has_no_power();
        let opened = loop {
            if !system_runs {
                self.disk.heal();
                self.disk.crash();
            }
            match open(&self.disk, self.sync, segment_bytes) {
                Ok(opened) => break opened,
                Err(LogError::Io { .. }) if !self.disk.is_sound() || self.has_failed => {}
                Err(error) => panic!("does not open: {error}"),
            }
            system_runs &= !self.disk.has_no_power();
            if system_runs {
                self.disk.heal();
                self.has_failed = false;
            }
        };
        self.check(opened, system_runs);
    }

    fn check(&mut self, (log, committer, recovery): (Log, Committer, Recovery), system_ran: bool) {
        // The disk may still have a fault set, but this check must not fail.
        let mut reader = log.reader(recovery.start);
        let mut found = Vec::new();
        self.disk.heal();
        while let Some(record) = reader.next(recovery.end).expect("readable") {
            found.push(record.payload.to_vec());
        }
        let is_there = |promise| if system_ran { promise > Promise::None } else { promise == Promise::Power };
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
    prop::sample::select(vec![Names, Open, Create, Rename, Remove, SyncNames, Read, Write, SetLen, Sync, Sync])
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
        1 => (0..400u64).prop_map(Step::FreeBytes),
        2 => (0..30u32, 1..6u32).prop_map(|(after, calls)| Step::FullFor(after, calls)),
        2 => Just(Step::CheckDisk),
        4 => Just(Step::Spares),
        1 => (1..40usize).prop_map(Step::ShortWrites),
        1 => (0..30u32).prop_map(Step::PowerCutAfter),
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
    fn acknowledged_records_survive_all_faults_refused_ones_do_not(
        seed in any::<u64>(), steps in prop::collection::vec(any_step(), 1..50)
    ) {
        run(seed, Sync::Always, &steps);
    }

    #[test]
    fn with_interval_sync_only_a_power_cut_loses_unsynced_records(
        seed in any::<u64>(), steps in prop::collection::vec(any_step(), 1..50)
    ) {
        run(seed, Sync::Every(INTERVAL), &steps);
    }
}
