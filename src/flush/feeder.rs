//! The feeder: a thread that reads the log into pending.
//!
//! It reads and decodes records without the lock of pending, and inserts the readings in turns of bounded
//! length, so that a large record does not keep other tasks from the lock.
//!
//! If the log had a deletion when it was opened, the readings before it are left out as they are read, so
//! that readings that were stored before a crash are not stored again. If the store had executed that
//! deletion, it is not executed again. Any other deletion removes pending readings here, in the order of the
//! log ([`crate::pending`]); the deleter does the rest.
//!
//! Nothing is stored before the feeder has reached the deletions that this instance has missed
//! ([`super::instances`]). If pending is full before that, they begin at once: all readings that are inserted
//! precede them, and those in the log before them are left out.
//!
//! It does not wake for each record, but for many of them: at the end of a tick, for many bytes, for a query
//! ([`Pipeline::catch_up`]), or when the log closes.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::replay::Replay;
use super::{Pipeline, hour_text};
use crate::common::once_per_change::OncePerChange;
use crate::log::batch::BadPayload;
use crate::log::{
    Batch, BegunDeletion, DeletionRecord, Kind, Lag, LogError, MetadataRecord, Position, Reader, Record, Remaining,
};
use crate::model::Hour;
use crate::pending::{HourErasure, Insertion};

/// How many records are inserted before waiting queries and the scheduler are notified.
const RECORDS_PER_NOTIFICATION: usize = 256;

/// The longest tick. A record may wait in the log for a tick.
///
/// The wait delays the writes of buckets, which clients do not notice.
const MAX_TICK: Duration = Duration::from_millis(200);

/// The shortest tick, however short `flush.max_age` is.
const MIN_TICK: Duration = Duration::from_millis(1);

/// The number of unread bytes that ends a tick: the work of a few milliseconds.
const MANY_BYTES: u64 = 256 << 10;

/// The wait before the next attempt while pending is full or no file can be opened.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Starts the feeder.
///
/// It ends when the log is closed and read to its end, or when it is stopped.
pub(super) fn spawn(pipeline: Arc<Pipeline>) -> std::io::Result<std::thread::JoinHandle<()>> {
    let runtime = Handle::current();
    std::thread::Builder::new().name("log-feeder".to_owned()).spawn(move || {
        let _entered = runtime.enter(); // the clock is the runtime's
        let reader = pipeline.log.reader(*pipeline.announced.borrow());
        if let Err(why) = feed(&pipeline, reader, &runtime) {
            tracing::error!(error = why, "the log cannot be read any further");
            pipeline.failure.send_replace(Some(why));
        }
    })
}

fn feed(pipeline: &Pipeline, mut reader: Reader, runtime: &Handle) -> Result<(), String> {
    runtime.block_on(pipeline.peers.first_look()); // the log may get deletions of other instances
    let mut replay = Replay::default();
    pipeline.deletions.take_ahead(|begun, is_executed| replay.add(begun, is_executed));
    let mut no_files = OncePerChange::default(); // the process may open no more files
    let lag = Lag { tick: tick(pipeline.options.limits.max_age), bytes: MANY_BYTES };
    while let Some(readable) = pipeline.log.wait_readable(reader.position(), lag) {
        while reader.position() < readable {
            let inserted = insert_records(pipeline, &mut reader, readable, &mut replay, runtime)?;
            let ControlFlow::Continue(out_of_files) = inserted else { return Ok(()) };
            if announce(pipeline, reader.position(), readable).is_break() {
                return Ok(());
            }
            if let Some(error) = &out_of_files {
                if no_files.begins() {
                    tracing::warn!(%error, "cannot open a segment of the log; readings wait in the log until it can");
                }
                std::thread::sleep(RETRY_INTERVAL);
            } else {
                no_files.ends();
            }
        }
        pipeline.note_room();
    }
    Ok(())
}

/// Inserts up to [`RECORDS_PER_NOTIFICATION`] records.
///
/// Breaks if the feeder is stopped meanwhile, and returns the error if the process may open no more files.
fn insert_records(
    pipeline: &Pipeline,
    reader: &mut Reader,
    readable: Position,
    replay: &mut Replay,
    runtime: &Handle,
) -> Result<ControlFlow<(), Option<LogError>>, String> {
    for _ in 0..RECORDS_PER_NOTIFICATION {
        let record = match reader.next(readable) {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(error) if error.is_out_of_files() => return Ok(ControlFlow::Continue(Some(error))),
            Err(error) => return Err(error.to_string()),
        };
        let inserted = match record.kind {
            Kind::Readings => insert_record(pipeline, &record, replay, runtime).map_err(|error| error.to_string()),
            Kind::Deletion => delete(pipeline, &record, replay).map(|()| ControlFlow::Continue(())),
            Kind::Metadata => add_metadata(pipeline, &record, runtime),
        };
        if inserted.map_err(|error| format!("record at position {}: {error}", record.position))?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(None))
}

/// Tells queries and the scheduler how far the log is inserted.
///
/// Breaks if the feeder is stopped.
fn announce(pipeline: &Pipeline, inserted: Position, readable: Position) -> ControlFlow<()> {
    let mut state = pipeline.lock();
    if state.stopped {
        return ControlFlow::Break(());
    }
    state.inserted = inserted;
    if inserted >= readable {
        state.stalled_since = None;
    }
    let wakes_scheduler = state.wakes_scheduler();
    drop(state);
    pipeline.announced.send_replace(inserted);
    if wakes_scheduler {
        pipeline.due.notify_one();
    }
    ControlFlow::Continue(())
}

/// Returns the tick: a tenth of `max_age`, within [`MIN_TICK`] and [`MAX_TICK`].
///
/// A bucket is written at most this much after it has become due by its age.
fn tick(max_age: Duration) -> Duration {
    (max_age / 10).clamp(MIN_TICK, MAX_TICK)
}

/// Inserts a record into pending. Breaks if the feeder is stopped meanwhile.
///
/// The record then counts as not inserted, so the log is not cut behind it.
fn insert_record(
    pipeline: &Pipeline,
    record: &Record<'_>,
    replay: &mut Replay,
    runtime: &Handle,
) -> Result<ControlFlow<()>, BadPayload> {
    let mut left: Option<Batch> = None; // the readings to insert, if they are not the whole record
    let mut inserted = 0; // how many of them are inserted
    loop {
        let payload = left.as_ref().map_or(record.payload, Batch::payload);
        if let Some(Remaining { batch, left_out, .. }) = replay.filter(payload, inserted)? {
            let deleted = left_out - inserted;
            pipeline.lock().inserted_readings += deleted;
            pipeline.metrics.readings_deleted_total.increment(deleted);
            left = Some(batch);
        }
        let payload = left.as_ref().map_or(record.payload, Batch::payload);
        inserted = match insert(pipeline, payload, record, runtime)? {
            ControlFlow::Continue(()) => return Ok(ControlFlow::Continue(())),
            ControlFlow::Break(None) => return Ok(ControlFlow::Break(())),
            ControlFlow::Break(Some(inserted)) => inserted,
        };
        pipeline.deletions.take_ahead(|begun, _| {
            replay.add(begun, true);
            begin(pipeline, begun, replay, record.position);
        });
        pipeline.due.notify_one();
    }
}

/// Inserts the readings of a payload, the whole or a part of a record.
///
/// Breaks with `None` if the feeder is stopped meanwhile. If pending is full and missed deletions must begin
/// first, breaks with the number of inserted readings.
fn insert(
    pipeline: &Pipeline,
    payload: &[u8],
    record: &Record<'_>,
    runtime: &Handle,
) -> Result<ControlFlow<Option<u64>>, BadPayload> {
    let mut insertion = Insertion::new(payload, record.position)?;
    let (mut is_decoded, mut inserted) = (insertion.decode()?, 0);
    while is_decoded {
        let room = pipeline.completed.notified(); // before the check of pending, so that it misses no completion
        let mut state = pipeline.lock();
        if state.stopped {
            return Ok(ControlFlow::Break(None));
        }
        if state.pending.is_full() {
            if pipeline.deletions.has_missed() {
                return Ok(ControlFlow::Break(Some(inserted)));
            }
            state.stalled_since.get_or_insert_with(Instant::now);
            let has_begun = state.full.begins();
            let (bytes, inserted, crowded) = (state.pending.bytes(), state.inserted, state.pending.crowded());
            drop(state);
            if has_begun {
                warn_full(bytes, crowded);
            }
            insertion.release_names();
            let unused = pipeline.lock().pending.take_unused_names();
            let has_freed = unused.is_some();
            drop(unused); // without the lock
            if has_freed {
                continue; // there may be room now
            }
            pipeline.announced.send_replace(inserted);
            pipeline.due.notify_one();
            let _ = runtime.block_on(async { tokio::time::timeout(RETRY_INTERVAL, room).await });
            continue;
        }
        let readings = insertion.apply(&mut state.pending, pipeline.now_ms());
        state.inserted_readings += readings;
        inserted += readings;
        if insertion.is_over() {
            state.inserted = record.next;
        }
        drop(state);
        is_decoded = insertion.decode()?;
    }
    Ok(ControlFlow::Continue(()))
}

/// Logs that pending is full. `crowded` is the device and the hour of a crowded bucket, if there is one.
fn warn_full(bytes: u64, crowded: Option<(Arc<str>, Hour)>) {
    if let Some((device, hour)) = crowded {
        tracing::warn!(
            device = &*device,
            hour = hour_text::encode(hour).unwrap_or_default(),
            "a device has very many pending values in one hour; until they are written, readings wait in the log"
        );
    } else {
        tracing::warn!(bytes, "pending is full (pending.max_bytes); readings wait in the log");
    }
}

/// Adds a change of metadata to those that wait for the store.
///
/// If too many wait, as after a start while the store is away, this waits for room, and breaks if the feeder
/// is stopped meanwhile.
fn add_metadata(pipeline: &Pipeline, record: &Record<'_>, runtime: &Handle) -> Result<ControlFlow<()>, String> {
    let MetadataRecord { device, change, .. } = MetadataRecord::of(record.payload)?;
    loop {
        let room = pipeline.completed.notified();
        let mut state = pipeline.lock();
        if state.stopped {
            return Ok(ControlFlow::Break(()));
        }
        if !state.metadata.is_full() {
            state.metadata.add(device, change, record.position);
            state.inserted = record.next;
            drop(state);
            pipeline.metadata_added.notify_one();
            return Ok(ControlFlow::Continue(()));
        }
        state.stalled_since.get_or_insert_with(Instant::now);
        let (has_begun, inserted) = (state.full.begins(), state.inserted);
        drop(state);
        if has_begun {
            tracing::warn!("too many changes of metadata wait for the store; readings wait in the log");
        }
        pipeline.announced.send_replace(inserted);
        pipeline.due.notify_one();
        let _ = runtime.block_on(async { tokio::time::timeout(RETRY_INTERVAL, room).await });
    }
}

/// Begins a deletion of the log, unless it has begun.
fn delete(pipeline: &Pipeline, record: &Record<'_>, replay: &mut Replay) -> Result<(), String> {
    let DeletionRecord::Begun(begun) = DeletionRecord::of(record.payload)? else { return Ok(()) };
    if replay.reach(&begun) {
        return Ok(());
    }
    begin(pipeline, &begun, replay, record.position);
    pipeline.lock().inserted = record.next;
    pipeline.deletions.note_reached(begun.id);
    pipeline.due.notify_one();
    Ok(())
}

/// Begins a deletion: removes the pending readings that precede it, and blocks the hours until the store has
/// executed it.
fn begin(pipeline: &Pipeline, begun: &BegunDeletion, replay: &Replay, position: Position) {
    let (id, deletion) = (begun.id, &begun.deletion);
    let unanswered = replay.left_out_of(deletion);
    pipeline.lock().pending.begin_deletion(begun.clone(), unanswered, position, pipeline.now_ms());
    let mut next = Some(deletion.hours().start);
    while let Some(from) = next {
        let (hours, after) = pipeline.lock().pending.hours(&deletion.device, from..deletion.hours().end);
        for hour in hours {
            let erasure = HourErasure::of(&hour, deletion); // reads up to all values of a bucket
            let erased = pipeline.lock().pending.erase(id, &deletion.device, erasure);
            pipeline.metrics.readings_deleted_total.increment(erased.0);
        }
        next = after;
    }
    pipeline.lock().pending.end_erasure(id);
    pipeline.deletions.reached.notify_one();
}
