//! How the log is read while it is written: wait for records, then read them in order.
//!
//! The feeder and the forwarder call [`Log::wait_readable`] and [`Reader::next`] in turn. They get whole
//! records in the order of the acks, and none that the log has not acknowledged.
//!
//! A reader wakes for many records at once and not for each, because a wake-up costs more than the reading of
//! a record. It wakes at the end of a **tick**, or earlier when there are many bytes, when a query needs the
//! records, or when the log closes. A reader that found nothing in a whole tick sleeps until the next record.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::handle::Log;
use super::record::{Header, Kind};
use super::segment;
use super::state::{Phase, State};
use super::window::Window;
use super::{LogError, Position};
use crate::disk::{Folder, OpenFile, OpenMode};

/// How far a waiting reader may stay behind the log.
#[derive(Debug, Clone, Copy)]
pub struct Lag {
    /// The longest time for which a record stays unread.
    pub tick: Duration,
    /// The number of unread bytes that ends the wait.
    ///
    /// At most a sixteenth of `log.max_bytes` counts.
    pub bytes: u64,
}

impl Log {
    /// Starts reading at `position`, which must be a [`super::Recovery::start`], the end of a record, or the
    /// position of a cut.
    pub fn reader(&self, position: Position) -> Reader {
        Reader::new(Arc::clone(&self.folder), position)
    }

    /// Waits for readable records behind `position`, and then for more of them until `lag` ends the wait.
    ///
    /// Returns the end of the readable records. `None` when the log is closed, all queued batches are
    /// written, and none is behind `position`.
    pub fn wait_readable(&self, position: Position, lag: Lag) -> Option<Position> {
        let many = lag.bytes.min(self.options.max_bytes / 16).max(1);
        let progress = &self.shared.progress;
        let mut state = self.shared.lock();
        let mut tick_ends = Instant::now() + lag.tick;
        loop {
            let left = tick_ends.saturating_duration_since(Instant::now());
            let unread = state.readable.0.saturating_sub(position.0);
            if unread > 0 {
                if unread >= many || left.is_zero() || state.readers.wanted > position || state.phase != Phase::Open {
                    return Some(state.readable);
                }
            } else if state.phase == Phase::Closed {
                return None;
            }
            // After a tick without a record, any record wakes the reader, and its tick begins.
            let wake_at = Position(position.0 + if left.is_zero() { 1 } else { many });
            state.readers.wake_at = Some(state.readers.wake_at.map_or(wake_at, |others| others.min(wake_at)));
            if left.is_zero() {
                state = progress.wait(state).unwrap_or_else(PoisonError::into_inner);
                tick_ends = Instant::now() + lag.tick;
            } else {
                state = progress.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Makes readers read the records before `position` at once.
    ///
    /// This also ends the wait of a reader that begins to wait later and has not read them.
    pub fn read_up_to(&self, position: Position) {
        let mut state = self.shared.lock();
        state.readers.wanted = state.readers.wanted.max(position);
        let is_waiting = state.take_waiting_readers(true);
        drop(state);
        if is_waiting {
            self.shared.progress.notify_all();
        }
    }
}

/// The positions that waiting readers wait for.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// The end of the readable records at which a waiting reader has to wake.
    ///
    /// `None` if no reader waits.
    wake_at: Option<Position>,
    /// Readers should read the records before this position at once.
    wanted: Position,
}

impl State {
    /// Whether to notify waiting readers: enough is readable, the log closes, or `something_else` is true.
    ///
    /// This clears `wake_at`, so that readers are notified once. A reader that has to wait longer sets it
    /// again.
    pub(super) fn take_waiting_readers(&mut self, something_else: bool) -> bool {
        let is_due = |wake_at: &mut Position| something_else || self.phase != Phase::Open || self.readable >= *wake_at;
        self.readers.wake_at.take_if(is_due).is_some()
    }
}

/// Reads records one after the other, across segments.
#[derive(Debug)]
pub struct Reader {
    folder: Arc<dyn Folder>,
    position: Position,
    /// The open segment, by the position of its first byte.
    segment: Option<(Position, Window<Box<dyn OpenFile>>)>,
}

/// A record in the buffer of a reader.
#[derive(Debug)]
pub struct Record<'a> {
    /// The position of the record.
    pub position: Position,
    /// The position of the next record.
    pub next: Position,
    /// The kind of the record.
    pub kind: Kind,
    /// The payload: of a [`super::Batch`], a [`super::DeletionRecord`] or a [`super::MetadataRecord`].
    pub payload: &'a [u8],
}

impl Reader {
    pub(super) fn new(folder: Arc<dyn Folder>, position: Position) -> Self {
        Self { folder, position, segment: None }
    }

    /// The position of the next record.
    pub const fn position(&self) -> Position {
        self.position
    }

    /// The next record before `readable`, if any.
    ///
    /// The log has returned `readable` as the end of the readable records.
    ///
    /// # Errors
    /// When a segment cannot be read, or a record was damaged after the log was opened.
    pub fn next(&mut self, readable: Position) -> Result<Option<Record<'_>>, LogError> {
        while self.position < readable {
            let position = self.position;
            let Some(header) = self.header(readable)? else {
                self.open_segment()?;
                continue;
            };
            let next = Position(position.0 + header.record_bytes() as u64);
            self.position = next;
            if header.is_filler() {
                continue;
            }
            let (base, window) = self.segment.as_mut().expect("the header was read from it");
            let (at, len) = (position.0 - base.0 + Header::BYTES as u64, header.len as usize);
            let payload = window.bytes(at, len).map_err(unreadable(&*self.folder, *base))?;
            return Ok(Some(Record { position, next, kind: header.kind, payload: &payload[..len] }));
        }
        Ok(None)
    }

    /// The header of the good record at the position.
    ///
    /// `None`: no segment is open, or the open segment ends before the record.
    fn header(&mut self, readable: Position) -> Result<Option<Header>, LogError> {
        let Some((base, window)) = &mut self.segment else { return Ok(None) };
        let (at, unreadable) = (self.position.0 - base.0, unreadable(&*self.folder, *base));
        window.end = readable.0 - base.0; // the bytes behind it may be half written
        let found = window.record(at, self.position).map_err(&unreadable)?.map(|(header, _)| header);
        let has_ended = found.is_none() && window.bytes(at, 1).map_err(&unreadable)?.is_empty();
        if found.is_some() || has_ended { Ok(found) } else { Err(self.damaged()) }
    }

    /// Opens the segment that has the position, and skips its header.
    fn open_segment(&mut self) -> Result<(), LogError> {
        let bases = segment::list(&*self.folder)?;
        let holding = bases.iter().rev().find(|&&base| base <= self.position).copied();
        let base = match holding {
            Some(base) if self.segment.as_ref().is_none_or(|(open, _)| *open != base) => base,
            _ => return Err(self.damaged()),
        };
        let name = segment::name(base);
        let file =
            self.folder.open(&name, OpenMode::Hold).map_err(LogError::io("open", &self.folder.path_of(&name)))?;
        self.segment = Some((base, Window::new(file, 0)));
        self.position = self.position.max(Position(base.0 + segment::Header::BYTES as u64));
        Ok(())
    }

    fn damaged(&self) -> LogError {
        let base = self.segment.as_ref().map_or(self.position, |(base, _)| *base);
        let offset = self.position.0 - base.0;
        let path = self.folder.path_of(&segment::name(base));
        LogError::Damaged { path, offset, detail: "no whole record here".to_owned() }
    }
}

/// Makes the error of a read from the segment at `base`.
fn unreadable(folder: &dyn Folder, base: Position) -> impl Fn(std::io::Error) -> LogError {
    move |error| LogError::io("read", &folder.path_of(&segment::name(base)))(error)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    use super::super::crash_tests::{batch, open_log};
    use super::super::{Recovery, Sync};
    use super::*;

    /// A tick that is longer than any test.
    const HOUR: Duration = Duration::from_secs(3_600);

    const MINUTE: Duration = Duration::from_secs(60);

    fn lag(tick: Duration, bytes: u64) -> Lag {
        Lag { tick, bytes }
    }

    /// Opens a log in memory, and calls `test` while its writer runs.
    fn with_log(test: impl FnOnce(&Log, Recovery)) {
        let (log, committer, recovery) = open_log(Sync::Always, Duration::ZERO);
        std::thread::scope(|scope| {
            scope.spawn(move || committer.run());
            test(&log, recovery);
            log.close();
        });
    }

    fn append(log: &Log, id: u32) -> Position {
        log.append(batch(id, 1)).unwrap().wait().unwrap();
        log.usage().readable
    }

    /// Waits until a reader waits for the position of the readable records that `at` accepts.
    fn until_it_waits(log: &Log, at: impl Fn(Position) -> bool) {
        let deadline = Instant::now() + MINUTE;
        while !log.shared.lock().readers.wake_at.is_some_and(&at) {
            assert!(Instant::now() < deadline, "no reader waits");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_reader_wakes_for_many_bytes_and_for_a_query_but_not_for_a_record() {
        with_log(|log, recovery| {
            std::thread::scope(|scope| {
                let start = recovery.end;
                let waiting = scope.spawn(move || log.wait_readable(start, lag(HOUR, 1_000)));
                until_it_waits(log, |at| at.0 == start.0 + 1_000);
                let mut end = append(log, 0);
                while end.0 - start.0 < 1_000 {
                    assert!(!waiting.is_finished(), "it woke for {} bytes", end.0 - start.0);
                    end = append(log, 0);
                }
                assert_eq!(waiting.join().unwrap(), Some(end));

                let waiting = scope.spawn(move || log.wait_readable(end, lag(HOUR, 1_000)));
                let queried = append(log, 1);
                assert!(!waiting.is_finished());
                log.read_up_to(queried);
                assert_eq!(waiting.join().unwrap(), Some(queried));
                assert_eq!(log.wait_readable(end, lag(HOUR, 1_000)), Some(queried), "the query asked before");
            });
        });
    }

    #[test]
    fn a_reader_wakes_at_the_end_of_a_tick_and_sleeps_while_the_log_is_idle() {
        with_log(|log, recovery| {
            std::thread::scope(|scope| {
                let (tick, start) = (Duration::from_millis(5), recovery.end);
                let waiting = scope.spawn(move || log.wait_readable(start, lag(tick, u64::MAX)));
                until_it_waits(log, |at| at.0 == start.0 + 1); // without a limit of time
                let appended_at = Instant::now();
                let end = append(log, 0);
                assert_eq!(waiting.join().unwrap(), Some(end));
                assert!(appended_at.elapsed() >= tick, "it waited for more records");
            });
        });
    }

    #[test]
    fn a_sixteenth_of_a_small_log_is_many_bytes() {
        with_log(|log, recovery| {
            std::thread::scope(|scope| {
                let start = recovery.end;
                scope.spawn(move || log.wait_readable(start, lag(HOUR, u64::MAX)));
                until_it_waits(log, |at| at.0 == start.0 + log.options.max_bytes / 16);
                log.close();
            });
        });
    }

    #[test]
    fn the_end_of_the_log_wakes_a_reader_with_and_without_unread_records() {
        for records in [0, 3] {
            with_log(|log, recovery| {
                std::thread::scope(|scope| {
                    let start = recovery.end;
                    let waiting = scope.spawn(move || log.wait_readable(start, lag(HOUR, u64::MAX)));
                    let end = (0..records).map(|id| append(log, id)).last();
                    log.close();
                    assert_eq!(waiting.join().unwrap().filter(|&position| position > start), end);
                });
                assert_eq!(log.append(batch(9, 1)).unwrap_err(), super::super::AppendError::Closed);
            });
        }
    }

    /// With a tick that never ends, one lost wake-up would hang the test.
    #[test]
    fn no_query_waits_in_vain_for_a_reader_that_begins_to_wait() {
        const QUERIES: u64 = 400;
        let read = AtomicU64::new(0);
        with_log(|log, recovery| {
            std::thread::scope(|scope| {
                let read = &read;
                scope.spawn(move || {
                    let mut position = recovery.end;
                    while let Some(readable) = log.wait_readable(position, lag(HOUR, u64::MAX)) {
                        position = readable;
                        read.store(position.0, Ordering::SeqCst);
                    }
                });
                let (done, all_done) = mpsc::channel();
                for thread in 0..4 {
                    let done = done.clone();
                    scope.spawn(move || {
                        for _ in 0..QUERIES {
                            let end = append(log, thread);
                            log.read_up_to(end);
                            while read.load(Ordering::SeqCst) < end.0 {
                                std::thread::yield_now();
                            }
                        }
                        done.send(()).unwrap();
                    });
                }
                let outcome = (0..4).try_for_each(|_| all_done.recv_timeout(MINUTE));
                read.store(u64::MAX, Ordering::SeqCst); // ends the queries in any case
                outcome.expect("a query waited in vain");
                log.close();
            });
        });
    }
}
