//! The feeder: a thread that reads the log into pending.
//!
//! Records are read and decoded without the lock. What is decoded goes into pending in turns of bounded
//! length, so that one large record does not keep others from the lock.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Pipeline;
use crate::log::{Reader, Record};
use crate::pending::Insertion;

/// How many records are fed before others are told.
const RECORDS_PER_NEWS: usize = 256;

/// How long the feeder waits for news before it looks again by itself.
const PATIENCE: Duration = Duration::from_millis(500);

/// Starts the feeder. It ends when the log is closed and read to its end, or when it is stopped.
pub(super) fn spawn(pipeline: Arc<Pipeline>) -> std::io::Result<std::thread::JoinHandle<()>> {
    let runtime = Handle::current();
    std::thread::Builder::new().name("log-feeder".to_owned()).spawn(move || {
        let _entered = runtime.enter(); // the clock is the runtime's
        let reader = pipeline.log.reader(*pipeline.fed.borrow());
        if let Err(why) = feed(&pipeline, reader, &runtime) {
            tracing::error!(error = why, "the log cannot be read any further");
            pipeline.failure.send_replace(Some(why));
        }
    })
}

fn feed(pipeline: &Pipeline, mut reader: Reader, runtime: &Handle) -> Result<(), String> {
    let mut is_told = false; // that files have run out
    while let Some(readable) = pipeline.log.wait_readable(reader.position(), PATIENCE) {
        while reader.position() < readable {
            let mut out_of_files = None;
            for _ in 0..RECORDS_PER_NEWS {
                let record = match reader.next(readable) {
                    Ok(Some(record)) => record,
                    Ok(None) => break,
                    Err(error) if error.is_out_of_files() => {
                        out_of_files = Some(error);
                        break;
                    }
                    Err(error) => return Err(error.to_string()),
                };
                let fed = feed_record(pipeline, &record, runtime);
                let fed = fed.map_err(|error| format!("record at position {}: {error}", record.position))?;
                if fed.is_break() {
                    return Ok(());
                }
            }
            let mut state = pipeline.lock();
            if state.stopped {
                return Ok(());
            }
            state.fed = reader.position();
            if state.fed >= readable {
                state.stalled_since = None;
            }
            let (fed, is_due) = (state.fed, state.draining || state.pending.is_due(pipeline.now_ms()));
            drop(state);
            pipeline.fed.send_replace(fed);
            if is_due {
                pipeline.due.notify_one();
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
        let mut state = pipeline.lock();
        let has_room_again = state.is_full_logged && state.pending.is_half_free();
        state.is_full_logged &= !has_room_again;
        drop(state);
        if has_room_again {
            tracing::info!("readings do not wait in the log any more");
        }
    }
    Ok(())
}

/// Puts a record into pending. Breaks when the feeder is stopped; then the record counts as not fed, so that
/// the log is not cut behind it.
fn feed_record(
    pipeline: &Pipeline,
    record: &Record<'_>,
    runtime: &Handle,
) -> Result<ControlFlow<()>, crate::log::batch_view::BadPayload> {
    let mut insertion = Insertion::new(record.payload, record.position)?;
    let mut is_decoded = insertion.decode()?;
    while is_decoded {
        let room = pipeline.completed.notified(); // before the look at pending, so that no completion is missed
        let mut state = pipeline.lock();
        if state.stopped {
            return Ok(ControlFlow::Break(()));
        }
        if state.pending.is_full() {
            state.stalled_since.get_or_insert_with(Instant::now);
            let is_news = !std::mem::replace(&mut state.is_full_logged, true);
            let (bytes, fed) = (state.pending.bytes(), state.fed);
            drop(state);
            if is_news {
                tracing::warn!(bytes, "pending is full; readings wait in the log");
            }
            pipeline.fed.send_replace(fed);
            pipeline.due.notify_one();
            let _ = runtime.block_on(async { tokio::time::timeout(PATIENCE, room).await });
            continue;
        }
        state.fed_readings += insertion.apply(&mut state.pending, pipeline.now_ms());
        if insertion.is_over() {
            state.fed = record.next;
        }
        drop(state);
        is_decoded = insertion.decode()?;
    }
    Ok(ControlFlow::Continue(()))
}
