//! The thread that reads the log and has batches delivered.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::batch::Batch;
use super::delivery::Delivery;
use super::progress::Progress;
use crate::common::once_per_change::OncePerChange;
use crate::log::batch::BadPayload;
use crate::log::{DeletionRecord, Kind, Lag, Log, LogError, MetadataRecord, Position, Reader};

/// How long the follower waits for more records before it sends them.
///
/// It sends them earlier if they have 256 KiB.
const LAG: Lag = Lag { tick: Duration::from_secs(1), bytes: 256 << 10 };

/// The wait between attempts to open a segment without file descriptors.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Reads the log, makes batches, and hands them to [`Delivery`].
pub(super) struct Follower {
    log: Arc<Log>,
    reader: Reader,
    progress: Progress,
    delivery: Delivery,
    batch: Batch,
    /// The end of the last record whose readings are all in the batch, or delivered.
    gathered: Position,
    max_batch_bytes: usize,
    no_files: OncePerChange,
}

/// The reason why the thread ends before the end of the log.
enum End {
    /// Forwarding is stopped.
    Stopped,
    /// A record cannot be read.
    Failed(String),
}

impl Follower {
    pub(super) fn new(log: Arc<Log>, progress: Progress, delivery: Delivery, max_batch_bytes: usize) -> Self {
        let gathered = progress.position();
        let (reader, batch, no_files) = (log.reader(gathered), Batch::default(), OncePerChange::default());
        Self { log, reader, progress, delivery, batch, gathered, max_batch_bytes, no_files }
    }

    /// Runs until the log is closed and forwarded, or forwarding stops.
    ///
    /// If a record cannot be read, it forwards nothing more, and only keeps the metrics of the lag up to
    /// date.
    pub(super) fn run(mut self, runtime: &Handle) {
        if let Err(End::Failed(error)) = self.follow(runtime) {
            tracing::error!(error, "the log cannot be forwarded any further; a restart checks the log");
            runtime.block_on(self.delivery.wait_for_drain(&mut self.progress)); // the lag grows meanwhile
        }
        self.progress.save();
    }

    fn follow(&mut self, runtime: &Handle) -> Result<(), End> {
        loop {
            let was_at_end = self.log.usage().readable <= self.gathered;
            let Some(readable) = self.log.wait_readable(self.gathered, LAG) else { return Ok(()) };
            if was_at_end {
                self.progress.note_end(self.gathered); // the log ended here until a moment ago
            }
            self.progress.note_end(readable);
            while self.gathered < readable {
                self.read_record(readable, runtime)?;
            }
            self.deliver(runtime)?;
        }
    }

    /// Reads the next record before `readable`, and handles it by its kind.
    ///
    /// Readings are added to the batch, which is delivered each time it is full. A deletion or a change of
    /// metadata is executed after the readings before it are delivered.
    fn read_record(&mut self, readable: Position, runtime: &Handle) -> Result<(), End> {
        let Self { reader, batch, delivery, progress, .. } = self;
        let record = match reader.next(readable) {
            Ok(Some(record)) => record,
            Ok(None) => {
                self.gathered = readable; // filler
                return Ok(());
            }
            Err(error) if error.is_out_of_files() => return self.wait_for_files(&error, runtime),
            Err(error) => return Err(End::Failed(error.to_string())),
        };
        let next = record.next;
        match record.kind {
            Kind::Readings => batch.push_record(record.payload, self.max_batch_bytes, |batch| -> Result<(), End> {
                end_if_stopped(runtime.block_on(delivery.deliver(batch, progress)))?;
                batch.clear();
                progress.pass(self.gathered); // not this record: its other readings are in the next batch
                progress.save();
                Ok(())
            })?,
            Kind::Deletion => {
                let deletion = DeletionRecord::of(record.payload).map_err(End::Failed)?;
                self.deliver(runtime)?;
                if let DeletionRecord::Begun(begun) = deletion {
                    end_if_stopped(runtime.block_on(self.delivery.delete(&begun.deletion, &mut self.progress)))?;
                }
            }
            Kind::Metadata => {
                let record = MetadataRecord::of(record.payload).map_err(End::Failed)?;
                self.deliver(runtime)?;
                end_if_stopped(runtime.block_on(self.delivery.set_metadata(&record, &mut self.progress)))?;
            }
        }
        self.gathered = next;
        self.no_files.ends();
        Ok(())
    }

    /// Delivers the batch, and saves the position after its records.
    fn deliver(&mut self, runtime: &Handle) -> Result<(), End> {
        if !self.batch.is_empty() {
            end_if_stopped(runtime.block_on(self.delivery.deliver(&self.batch, &mut self.progress)))?;
            self.batch.clear();
        }
        self.progress.pass(self.gathered);
        self.progress.save();
        Ok(())
    }

    fn wait_for_files(&mut self, error: &LogError, runtime: &Handle) -> Result<(), End> {
        if self.no_files.begins() {
            tracing::warn!(%error, "cannot open a segment of the log; it is not forwarded until it can");
        }
        let wait = async { self.delivery.or_stop(&mut self.progress, tokio::time::sleep(RETRY_INTERVAL)).await };
        end_if_stopped(runtime.block_on(wait))
    }
}

fn end_if_stopped(done: ControlFlow<()>) -> Result<(), End> {
    if done.is_break() { Err(End::Stopped) } else { Ok(()) }
}

impl From<BadPayload> for End {
    fn from(error: BadPayload) -> Self {
        Self::Failed(error.to_string())
    }
}
