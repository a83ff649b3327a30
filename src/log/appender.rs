//! The appender: the only code that appends to segments.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::batch::Batch;
use super::checkpoint::{Checkpoint, SavedCheckpoint};
use super::record;
use super::segment;
use super::spares::{Spares, syncs_worth_a_spare};
use super::{LogError, Position};
use crate::disk::{Folder, OpenFile, OpenMode, Space};

/// A group of batches was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteFailure {
    /// The disk is full. The log has nothing of the group, and the next group may fit.
    #[error("{0}")]
    DiskFull(String),
    /// The group would have touched the reserve. The log has nothing of it.
    #[error("the disk has too little free space")]
    ReserveTouched,
    /// The next segment could not be opened. The log has nothing of the group.
    #[error("{0}")]
    OutOfFiles(String),
    /// It is unknown which bytes are on the disk.
    #[error("{0}")]
    Poisoned(String),
}

/// Writes groups of batches to the newest segment.
#[derive(Debug)]
pub(super) struct Appender {
    folder: Arc<dyn Folder>,
    saved: Arc<SavedCheckpoint>,
    segment_bytes: u64,
    spares: Arc<Spares>,
    file: Box<dyn OpenFile>,
    /// The length of the file. Its bytes behind the last record are room (`spares.rs`).
    len: u64,
    /// The file has grown since the last sync.
    has_grown: bool,
    /// How many syncs since the last spare were of a file that had grown.
    growing_syncs: u64,
    /// After this many such syncs a spare is due.
    patience: u64,
    /// The position of the newest segment.
    pub(super) base: Position,
    /// The position of the next record.
    pub(super) end: Position,
    /// The end of the synced records.
    pub(super) durable: Position,
    buffer: Vec<u8>,
}

impl Appender {
    /// Continues in the segment that begins at `base`, at `end`. The caller has synced the segment, which has
    /// no room.
    pub(super) fn resume(
        folder: Arc<dyn Folder>,
        saved: Arc<SavedCheckpoint>,
        spares: Arc<Spares>,
        segment_bytes: u64,
        (base, end): (Position, Position),
    ) -> Result<Self, LogError> {
        let name = segment::name(base);
        let file = folder.open(&name, OpenMode::Write).map_err(LogError::io("open", &folder.path_of(&name)))?;
        Ok(Self {
            folder,
            saved,
            segment_bytes,
            spares,
            file,
            len: end.0 - base.0,
            has_grown: false,
            growing_syncs: 0,
            patience: syncs_worth_a_spare(segment_bytes),
            base,
            end,
            durable: end,
            buffer: Vec::new(),
        })
    }

    pub(super) fn is_synced(&self) -> bool {
        self.durable == self.end
    }

    /// The space on the disk of the log; unlimited if the system does not report it.
    pub(super) fn space(&self) -> Space {
        self.folder.space().unwrap_or(Space { free: u64::MAX, total: u64::MAX })
    }

    /// Makes a spare due as soon as a segment has grown.
    #[cfg(test)]
    pub(super) const fn lose_patience(&mut self) {
        self.patience = 1;
    }

    /// The number of bytes behind the end that the file has already.
    pub(super) fn room(&self) -> u64 {
        self.len - self.used()
    }

    /// The number of bytes by which files grow at most if `bytes` are written.
    pub(super) fn growth(&self, bytes: u64) -> u64 {
        if self.used() >= self.segment_bytes { bytes } else { bytes.saturating_sub(self.room()) }
    }

    /// Whether the log should go on in a spare: the segment has grown for long, and a spare is ready. If a
    /// spare is due and none is ready, this requests one.
    pub(super) fn is_spare_due(&self) -> bool {
        if self.growing_syncs < self.patience || self.room() > 0 {
            return false;
        }
        let is_ready = self.spares.is_ready();
        if !is_ready {
            self.spares.request();
        }
        is_ready
    }

    /// Starts the next segment if the newest one has records, so that the log can remove the newest one once
    /// its readings are stored. Otherwise it cuts off the room.
    pub(super) fn end_segment(&mut self) -> Result<(), WriteFailure> {
        if self.used() > segment::Header::BYTES as u64 { self.roll() } else { self.finish() }
    }

    /// Syncs all written records, and cuts off the room behind them.
    pub(super) fn finish(&mut self) -> Result<(), WriteFailure> {
        if self.room() > 0 {
            self.file.set_len(self.used()).map_err(|error| {
                let failed = format!("truncate {}: {error}", self.path().display());
                if is_disk_full(&error) { WriteFailure::DiskFull(failed) } else { WriteFailure::Poisoned(failed) }
            })?;
            self.len = self.used();
        } else if self.is_synced() {
            return Ok(());
        }
        self.sync().map(drop)
    }

    /// The bytes of the newest segment up to the end.
    const fn used(&self) -> u64 {
        self.end.0 - self.base.0
    }

    /// Writes the batches, one record each, with one call. Does not sync them.
    pub(super) fn write<'a>(&mut self, batches: impl Iterator<Item = &'a Batch>) -> Result<(), WriteFailure> {
        if self.used() >= self.segment_bytes {
            self.roll()?;
        }
        self.buffer.clear();
        for batch in batches {
            let position = Position(self.end.0 + self.buffer.len() as u64);
            record::encode(&mut self.buffer, position, self.durable, batch.kind(), batch.readings(), batch.payload());
        }
        if let Err(error) = self.file.write_all_at(&self.buffer, self.used()) {
            return Err(self.undo_write(&error));
        }
        self.end = Position(self.end.0 + self.buffer.len() as u64);
        if self.used() > self.len {
            (self.len, self.has_grown) = (self.used(), true);
        }
        self.buffer.shrink_to(1 << 20);
        Ok(())
    }

    /// Syncs all written records, and returns the duration in seconds.
    pub(super) fn sync(&mut self) -> Result<f64, WriteFailure> {
        let start = Instant::now();
        self.file.sync().map_err(|error| WriteFailure::Poisoned(format!("sync {}: {error}", self.path().display())))?;
        self.durable = self.end;
        self.growing_syncs += u64::from(std::mem::take(&mut self.has_grown));
        Ok(start.elapsed().as_secs_f64())
    }

    /// Starts the next segment, in a spare if one is ready. It syncs the previous one first, and cuts off its
    /// room, so that only the newest can have a torn tail or room.
    ///
    /// If the segment cannot be created, there is no file of its name, and the previous one goes on. If the
    /// folder cannot be synced, it is unknown whether the name survives a crash: the log is poisoned.
    fn roll(&mut self) -> Result<(), WriteFailure> {
        self.finish()?;
        let spare = self.spares.take();
        let in_spare = spare.and_then(|spare| spare.into_segment(&*self.folder, self.end).ok());
        (self.file, self.len) = match in_spare {
            Some(segment) => {
                self.growing_syncs = 0;
                segment
            }
            None => (self.create_segment()?, segment::Header::BYTES as u64),
        };
        let unsynced = |error| WriteFailure::Poisoned(format!("sync {}: {error}", self.folder.path().display()));
        self.folder.sync().map_err(unsynced)?;
        self.base = self.end;
        self.end = Position(self.base.0 + segment::Header::BYTES as u64);
        self.durable = self.end;
        // If this fails, the next cut saves it and reports the error.
        let _ = self.saved.advance(Checkpoint { position: Position::default(), durable: self.durable });
        Ok(())
    }

    fn create_segment(&self) -> Result<Box<dyn OpenFile>, WriteFailure> {
        segment::create(&*self.folder, self.end).map_err(|error| match error {
            LogError::Io { error, .. } if is_disk_full(&error) => WriteFailure::DiskFull(error.to_string()),
            other if other.is_out_of_files() => WriteFailure::OutOfFiles(other.to_string()),
            other => WriteFailure::Poisoned(other.to_string()),
        })
    }

    fn path(&self) -> PathBuf {
        self.folder.path_of(&segment::name(self.base))
    }

    /// Removes the bytes that a failed write left behind the end, with the room, and syncs the removal. The
    /// requests get an error, so their readings must not reappear after a restart or a crash.
    fn undo_write(&mut self, error: &std::io::Error) -> WriteFailure {
        let failed = format!("write {}: {error}", self.path().display());
        let undone = self.file.set_len(self.used()).and_then(|()| self.file.sync());
        self.len = self.used();
        if is_disk_full(error) && undone.is_ok() {
            WriteFailure::DiskFull(failed)
        } else {
            WriteFailure::Poisoned(failed)
        }
    }
}

fn is_disk_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}
