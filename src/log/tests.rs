//! Tests of the whole log: sequences of operations, with crashes in between.

mod damage;
mod every_place;
mod stale;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use proptest::prelude::*;

use super::backup::Snapshot;
use super::checkpoint::{Checkpoint, CheckpointFile};
use super::committer::Appender;
use super::quarantine;
use super::recovery::{self, recover};
use super::segment::{self, Header};
use super::slots::Slot;
use super::spares::Spares;
use super::{
    Batch, BatchBuilder, BegunDeletion, DeletionRecord, Instruments, Lag, Log, LogError, Options, Position, Sync,
};
use crate::disk::faulty::Disk;
use crate::disk::{Folder, OsFolder};
use crate::model::{Deletion, SeriesFilter};

/// A batch of `readings` readings, which `id` tells from other batches.
pub(super) fn batch(id: u32, readings: u32) -> Batch {
    let mut builder = BatchBuilder::default();
    for reading in 0..readings {
        builder.push(&format!("device-{id}"), None, i64::from(reading), [("m", f64::from(id))].into_iter()).unwrap();
    }
    builder.finish()
}

/// Options with segments so small that a few records fill one.
fn options(dir: &Path) -> Options {
    Options { segment_bytes: 300, max_bytes: 1 << 20, ..Options::of_test(dir) }
}

pub(super) fn open(dir: &Path) -> (Log, super::recovery::Recovery) {
    Log::open(options(dir), Instruments::default()).expect("opens")
}

/// The folder at a path, as the parts of the log see it.
pub(super) fn folder(dir: &Path) -> Arc<OsFolder> {
    Arc::new(OsFolder::new(dir))
}

pub(super) fn append(log: &Log, batch: Batch) -> Result<(), super::AppendError> {
    let mut ack = log.append(batch)?;
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ack.durable())
}

fn segment_path(dir: &Path, base: Position) -> std::path::PathBuf {
    dir.join(segment::name(base))
}

pub(super) fn read_all(log: &Log, from: Position) -> Vec<Vec<u8>> {
    let mut reader = log.reader(from);
    let readable = log.usage().readable;
    std::iter::from_fn(|| reader.next(readable).expect("readable").map(|record| record.payload.to_vec())).collect()
}

fn payloads(batches: &[Batch]) -> Vec<Vec<u8>> {
    batches.iter().map(|batch| batch.payload().to_vec()).collect()
}

/// A change that a crash may make to unsynced bytes.
#[derive(Debug, Clone)]
enum Tear {
    Keep,
    Truncate(prop::sample::Index),
    ZeroFrom(prop::sample::Index),
    Garble(prop::sample::Index, prop::sample::Index, u8),
}

fn tear(bytes: &mut Vec<u8>, synced: usize, tear: &Tear) {
    let unsynced = bytes.len() - synced;
    if unsynced == 0 {
        return;
    }
    match tear {
        Tear::Keep => {}
        Tear::Truncate(at) => bytes.truncate(synced + at.index(unsynced)),
        Tear::ZeroFrom(at) => bytes[synced + at.index(unsynced)..].fill(0),
        Tear::Garble(a, b, with) => {
            let (a, b) = (synced + a.index(unsynced), synced + b.index(unsynced));
            bytes[a.min(b)..=a.max(b)].fill(*with);
        }
    }
}

fn any_tear() -> impl Strategy<Value = Tear> {
    prop_oneof![
        Just(Tear::Keep),
        any::<prop::sample::Index>().prop_map(Tear::Truncate),
        any::<prop::sample::Index>().prop_map(Tear::ZeroFrom),
        (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>())
            .prop_map(|(a, b, with)| Tear::Garble(a, b, with)),
    ]
}

#[test]
fn a_position_beyond_that_of_any_log_is_refused_before_anything_is_written() {
    for (base, is_refused) in [(Position::MAX, true), (Position::MAX - 64, false)] {
        let disk = Disk::new(0);
        segment::create(&disk, Position(base)).unwrap();
        for _ in 0..2 {
            let opened = recover(&disk).map(|(recovery, _)| recovery.end);
            assert_eq!(opened.is_err(), is_refused, "{opened:?}");
        }
        assert_eq!(disk.names().unwrap().len(), if is_refused { 1 } else { 2 });
    }
}

#[test]
fn a_checkpoint_inside_of_a_record_is_named_and_can_be_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let batches = [batch(1, 2), batch(2, 2)];
    for batch in &batches {
        append(&log, batch.clone()).unwrap();
    }
    log.close();
    drop(log);
    let end = open(dir.path()).1.end;
    let is_boundary = |position: u64| {
        let checkpoint = Checkpoint { position: Position(position), durable: end };
        std::fs::remove_file(dir.path().join(Checkpoint::NAME)).unwrap();
        CheckpointFile::create(&OsFolder::new(dir.path()), checkpoint).unwrap();
        match recovery::inspect(dir.path()) {
            Ok(_) => true,
            Err(LogError::BadCheckpoint { detail, .. }) => {
                assert_eq!(detail, "its position is inside of a record");
                false
            }
            Err(error) => panic!("{position}: {error}"),
        }
    };
    let header = Header::BYTES as u64;
    let positions = (header..=end.0).step_by(Position::ALIGNMENT as usize);
    let boundaries: Vec<u64> = positions.filter(|position| is_boundary(*position)).collect();
    assert_eq!((boundaries.len(), boundaries[0], boundaries[2]), (3, header, end.0));
    assert!(!is_boundary(end.0 - Position::ALIGNMENT));
    quarantine::repair_checkpoint(dir.path(), &dir.path().join("aside")).unwrap();
    let (log, recovery) = open(dir.path());
    assert_eq!(read_all(&log, recovery.start), payloads(&batches));
}

#[derive(Debug, Clone)]
enum Operation {
    Write(Vec<u8>),
    Sync,
    /// The machine crashes, and the disk changes the unsynced bytes.
    Crash(Tear),
}

fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => prop::collection::vec(0..6u8, 1..5).prop_map(Operation::Write),
        3 => Just(Operation::Sync),
        2 => any_tear().prop_map(Operation::Crash),
    ]
}

proptest! {
    #[test]
    fn a_crash_keeps_all_synced_records_and_a_prefix_of_the_rest(
        operations in prop::collection::vec(any_operation(), 1..40)
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (recovery, saved) = recover(&*folder(dir.path())).unwrap();
        let resume = |recovery: &super::recovery::Recovery, saved| {
            let spares = Arc::new(Spares::new(folder(dir.path()), 300, 0));
            Appender::resume(folder(dir.path()), saved, spares, 300, recovery).unwrap()
        };
        let mut appender = resume(&recovery, Arc::new(saved));
        let (mut synced, mut unsynced): (Vec<Batch>, Vec<Batch>) = (Vec::new(), Vec::new());
        let mut id = 0;
        for operation in operations {
            match operation {
                Operation::Write(sizes) => {
                    let base = appender.base;
                    let mut next = |&size| {
                        id += 1;
                        batch(id, u32::from(size) + 1)
                    };
                    let group: Vec<Batch> = sizes.iter().map(&mut next).collect();
                    appender.write(group.iter()).unwrap();
                    if appender.base != base {
                        synced.append(&mut unsynced); // a new segment syncs the previous one
                    }
                    unsynced.extend(group);
                }
                Operation::Sync => {
                    appender.sync().unwrap();
                    synced.append(&mut unsynced);
                }
                Operation::Crash(how) => {
                    let path = segment_path(dir.path(), appender.base);
                    let durable = (appender.durable.0.max(appender.base.0) - appender.base.0) as usize;
                    let mut bytes = std::fs::read(&path).unwrap();
                    tear(&mut bytes, durable, &how);
                    std::fs::write(&path, bytes).unwrap();
                    let (recovery, saved) = recover(&*folder(dir.path())).unwrap();
                    appender = resume(&recovery, Arc::new(saved));
                    let mut reader = super::Reader::new(folder(dir.path()), recovery.start);
                    let mut next = || reader.next(recovery.end).unwrap().map(|record| record.payload.to_vec());
                    let found: Vec<Vec<u8>> = std::iter::from_fn(&mut next).collect();
                    let (before, tail) = (payloads(&synced), payloads(&unsynced));
                    prop_assert!(found.len() >= before.len(), "lost {} synced records", before.len() - found.len());
                    prop_assert_eq!(&found[..before.len()], &before[..]);
                    let left = found.len() - before.len();
                    prop_assert_eq!(&found[before.len()..], &tail[..left]);
                    synced.extend(unsynced.drain(..).take(left));
                    let readings: u64 = synced.iter().map(|batch| u64::from(batch.readings())).sum();
                    prop_assert_eq!(recovery.readings, readings);
                }
            }
        }
    }
}

#[test]
fn acked_batches_come_back_in_order_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let batches: Vec<Batch> = (0..50).map(|id| batch(id, id % 7 + 1)).collect();
    let (log, recovery) = open(dir.path());
    let acks: Vec<_> = batches.iter().map(|batch| log.append(batch.clone()).unwrap()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for mut ack in acks {
        runtime.block_on(ack.durable()).unwrap();
    }
    assert_eq!(read_all(&log, recovery.start), payloads(&batches));
    drop(log);
    let (log, recovery) = open(dir.path());
    assert_eq!(read_all(&log, recovery.start), payloads(&batches));
    assert_eq!(recovery.readings, batches.iter().map(|batch| u64::from(batch.readings())).sum::<u64>());
}

#[test]
fn batches_queued_when_the_log_closes_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    for id in 0..30 {
        drop(log.append(batch(id, 1)).unwrap()); // no task awaits these acks
    }
    drop(log);
    let (log, recovery) = open(dir.path());
    assert_eq!(read_all(&log, recovery.start).len(), 30);
}

#[test]
fn a_reader_gets_all_queued_records_of_a_closed_log() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let (log, recovery) = open(dir.path());
        let acks: Vec<_> = (0..30).map(|id| log.append(batch(id, 1)).unwrap()).collect();
        log.close();
        let mut reader = log.reader(recovery.start);
        let mut found = 0;
        while let Some(readable) = log.wait_readable(reader.position(), Lag { tick: Duration::from_secs(60), bytes: 1 })
        {
            while reader.next(readable).unwrap().is_some() {
                found += 1;
            }
        }
        assert_eq!(found, acks.len());
    }
}

#[test]
fn a_cut_removes_whole_segments_and_reading_starts_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let (log, recovery) = open(dir.path());
    for id in 0..20 {
        append(&log, batch(id, 2)).unwrap();
    }
    let mut reader = log.reader(recovery.start);
    for _ in 0..12 {
        reader.next(log.usage().readable).unwrap().unwrap();
    }
    let before = log.usage().bytes;
    log.cut(reader.position()).unwrap();
    assert!(log.usage().bytes < before / 2, "{} of {before} bytes are left", log.usage().bytes);
    drop(log);
    let (log, recovery) = open(dir.path());
    assert_eq!(recovery.start, reader.position());
    assert_eq!(read_all(&log, recovery.start), payloads(&(12..20).map(|id| batch(id, 2)).collect::<Vec<_>>()));
    log.cut(recovery.end).unwrap();
    drop(log);
    let (log, recovery) = open(dir.path());
    assert_eq!((recovery.readings, read_all(&log, recovery.start).len()), (0, 0));
}

#[test]
fn a_full_log_takes_only_deletions_until_a_cut() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(Options { max_bytes: 1000, ..options(dir.path()) }, Instruments::default()).unwrap();
    let refused = (0..100).find_map(|id| append(&log, batch(id, 2)).err());
    assert_eq!(refused, Some(super::AppendError::Full(1000)));
    assert!(log.usage().bytes <= 1000);
    append(&log, DeletionRecord::Executed { id: 1 }.to_batch()).unwrap();
    assert_eq!(append(&log, batch(7, 2)).err(), refused);
    log.cut(log.usage().readable).unwrap();
    append(&log, batch(7, 2)).unwrap();
}

#[test]
fn a_large_log_that_was_full_takes_records_as_soon_as_a_segment_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 300 << 10, max_bytes: 8 << 20, ..options(dir.path()) };
    let (log, _) = Log::open(options, Instruments::default()).unwrap();
    let fill = || while append(&log, batch(7, 5_000)).is_ok() {}; // 100 kB each
    let full = || (log.usage().is_full, log.usage().was_full);
    fill();
    assert_eq!(full(), (true, true));
    let bases = segment::list(&*folder(dir.path())).unwrap();
    log.cut(*bases.iter().find(|base| base.0 >= 300 << 10).unwrap()).unwrap();
    assert_eq!(full(), (false, true));
    append(&log, batch(7, 5_000)).unwrap();
    fill();
    assert_eq!(full(), (true, true));
    log.cut(log.usage().readable).unwrap();
    assert_eq!(full(), (false, false));
}

/// Senders may wait while the log is full. Then neither an append nor its refusal ends the segment.
#[test]
fn a_log_that_one_segment_fills_ends_it_at_the_next_check_and_can_be_cut() {
    let dir = tempfile::tempdir().unwrap();
    let opened = |max_bytes| {
        let options = Options { segment_bytes: 1 << 20, max_bytes, ..options(dir.path()) };
        Log::open(options, Instruments::default()).unwrap()
    };
    let (log, _) = opened(1 << 20);
    for id in 0..20 {
        append(&log, batch(id, 2)).unwrap();
    }
    drop(log);
    let (log, recovery) = opened(300);
    log.cut(recovery.end).unwrap();
    assert!(log.usage().bytes > 300, "it is full");
    log.check_disk();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while log.usage().bytes > 300 {
        assert!(std::time::Instant::now() < deadline, "the segment did not end");
        std::thread::yield_now();
        log.cut(recovery.end).unwrap();
    }
    append(&log, batch(7, 1)).unwrap();
}

#[test]
fn a_log_whose_newest_segment_was_removed_refuses_records_from_the_next_check_on() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    for id in 0..10 {
        append(&log, batch(id, 2)).unwrap();
    }
    log.cut(log.usage().readable).unwrap();
    log.check_disk();
    assert_eq!(log.poisoned(), None, "a cut has removed older segments");
    let newest = segment_path(dir.path(), *segment::list(&*folder(dir.path())).unwrap().last().unwrap());
    std::fs::remove_file(&newest).unwrap();
    log.check_disk();
    let why = format!("{} was removed while it is in use", newest.display());
    assert_eq!(append(&log, batch(10, 2)), Err(super::AppendError::Poisoned(why.clone())));
    assert_eq!((log.poisoned(), log.failed().now_or_never()), (Some(why.clone()), Some(why)));
}

#[test]
fn a_log_whose_newest_segment_was_removed_begins_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    append(&log, batch(0, 100)).unwrap(); // fills the segment, so the next record would begin another
    let first = segment_path(dir.path(), Position(0));
    std::fs::remove_file(&first).unwrap();
    let why = format!("{} was removed while it is in use", first.display());
    assert_eq!(append(&log, batch(1, 1)), Err(super::AppendError::Poisoned(why.clone())));
    assert_eq!((log.is_removed(), log.poisoned()), (true, Some(why)));
}

#[test]
fn with_interval_sync_a_deletion_is_synced_with_all_records_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let sync = Sync::Every(Duration::from_secs(3600));
    let (log, _) = Log::open(Options { sync, ..options(dir.path()) }, Instruments::default()).unwrap();
    append(&log, batch(1, 1)).unwrap();
    let synced = || {
        log.cut(log.usage().readable).unwrap(); // moves no further than the synced records
        let saved = super::slots::load::<Checkpoint>(&*folder(dir.path())).unwrap();
        saved.is_some_and(|saved| saved.position == log.usage().readable)
    };
    assert!(!synced());
    append(&log, DeletionRecord::Executed { id: 1 }.to_batch()).unwrap();
    assert!(synced());
}

#[test]
fn with_interval_sync_an_ack_does_not_wait_and_the_sync_follows() {
    let dir = tempfile::tempdir().unwrap();
    let sync = Sync::Every(Duration::from_millis(5));
    let (log, recovery) = Log::open(Options { sync, ..options(dir.path()) }, Instruments::default()).unwrap();
    append(&log, batch(1, 1)).unwrap();
    let readable = log.usage().readable;
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        log.cut(readable).unwrap(); // moves no further than the synced records
        if super::slots::load::<super::checkpoint::Checkpoint>(&*folder(dir.path()))
            .unwrap()
            .is_some_and(|saved| saved.position == readable)
        {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "the log did not sync");
        std::thread::yield_now();
    }
    assert_eq!(read_all(&log, recovery.start).len(), 1);
}
