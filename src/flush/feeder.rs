//! The feeder: a thread that reads the log into pending.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Flush;
use crate::log::Reader;

/// How many records are fed before the lock is given to others.
const RECORDS_PER_TURN: usize = 256;

/// How long the feeder waits for news before it looks again by itself.
const PATIENCE: Duration = Duration::from_millis(500);

/// Starts the feeder. It ends when the log is closed and read to its end, or when it is stopped.
pub(super) fn spawn(flush: Arc<Flush>) -> std::io::Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new().name("log-feeder".to_owned()).spawn(move || {
        let _entered = runtime.enter(); // the clock is the runtime's
        let reader = flush.log.reader(*flush.fed.borrow());
        if let Err(why) = feed(&flush, reader, &runtime) {
            tracing::error!(error = why, "the log cannot be read any further");
            flush.failure.send_replace(Some(why));
        }
    })
}

fn feed(flush: &Flush, mut reader: Reader, runtime: &tokio::runtime::Handle) -> Result<(), String> {
    let mut is_told = false; // that files have run out
    while let Some(readable) = flush.log.wait_readable(reader.position(), PATIENCE) {
        while reader.position() < readable {
            let room = flush.completed.notified(); // before the look at pending, so that no completion is missed
            let mut state = flush.lock();
            if state.stopped {
                return Ok(());
            }
            if state.pending.is_full() {
                state.stalled_since.get_or_insert_with(Instant::now);
                if !std::mem::replace(&mut state.full_is_told, true) {
                    tracing::warn!(bytes = state.pending.bytes(), "pending is full; readings wait in the log");
                }
                drop(state);
                flush.due.notify_one();
                let _ = runtime.block_on(async { tokio::time::timeout(PATIENCE, room).await });
                continue;
            }
            let mut out_of_files = None;
            for _ in 0..RECORDS_PER_TURN {
                let record = match reader.next(readable) {
                    Ok(Some(record)) => record,
                    Ok(None) => break,
                    Err(error) if error.is_out_of_files() => {
                        out_of_files = Some(error);
                        break;
                    }
                    Err(error) => return Err(error.to_string()),
                };
                let inserted = state.pending.insert(record.payload, record.position, flush.now_ms());
                inserted.map_err(|error| format!("record at position {}: {error}", record.position))?;
                state.fed = record.next;
                state.fed_readings += u64::from(record.readings);
                if state.pending.is_full() {
                    break;
                }
            }
            state.fed = reader.position();
            if state.fed >= readable {
                state.stalled_since = None;
            }
            let (fed, is_due) = (state.fed, state.draining || state.pending.is_due(flush.now_ms()));
            drop(state);
            flush.fed.send_replace(fed);
            if is_due {
                flush.due.notify_one();
            }
            if let Some(error) = &out_of_files {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%error, "a segment of the log cannot be opened; readings wait in the log until it can");
                }
                std::thread::sleep(PATIENCE);
            } else {
                is_told = false;
            }
        }
        let mut state = flush.lock();
        if state.full_is_told && state.pending.is_half_free() {
            tracing::info!("readings do not wait in the log any more");
            state.full_is_told = false;
        }
    }
    Ok(())
}
