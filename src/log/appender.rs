//! The appender: the only code that appends to segments.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::batch::Batch;
use super::checkpoint::{Checkpoint, SavedCheckpoint};
use super::record;
use super::segment;
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
    file: Box<dyn OpenFile>,
    /// The position of the newest segment.
    base: Position,
    /// The position of the next record.
    end: Position,
    /// The end of the synced records.
    durable: Position,
    buffer: Vec<u8>,
}

impl Appender {
    /// Continues at `end` in the segment that begins at `base`. The caller has synced the segment.
    pub(super) fn resume(
        folder: Arc<dyn Folder>,
        saved: Arc<SavedCheckpoint>,
        segment_bytes: u64,
        base: Position,
        end: Position,
    ) -> Result<Self, LogError> {
        let name = segment::name(base);
        let file = folder.open(&name, OpenMode::Write).map_err(LogError::io("open", &folder.path_of(&name)))?;
        Ok(Self { folder, saved, segment_bytes, file, base, end, durable: end, buffer: Vec::new() })
    }

    pub(super) const fn end(&self) -> Position {
        self.end
    }

    pub(super) const fn base(&self) -> Position {
        self.base
    }

    pub(super) const fn durable(&self) -> Position {
        self.durable
    }

    pub(super) fn is_synced(&self) -> bool {
        self.durable == self.end
    }

    /// The space on the disk of the log; unlimited if the system does not report it.
    pub(super) fn space(&self) -> Space {
        self.folder.space().unwrap_or(Space { free: u64::MAX, total: u64::MAX })
    }

    /// Starts the next segment if the newest one has records. So the log can remove the newest one once its
    /// readings are stored.
    pub(super) fn end_segment(&mut self) -> Result<(), WriteFailure> {
        if self.end.0 > self.base.0 + segment::Header::BYTES as u64 { self.roll() } else { Ok(()) }
    }

    /// Writes the batches, one record each, with one call. Does not sync them.
    pub(super) fn write<'a>(&mut self, batches: impl Iterator<Item = &'a Batch>) -> Result<(), WriteFailure> {
        if self.end.0 - self.base.0 >= self.segment_bytes {
            self.roll()?;
        }
        self.buffer.clear();
        for batch in batches {
            let position = Position(self.end.0 + self.buffer.len() as u64);
            record::encode(&mut self.buffer, position, self.durable, batch.kind(), batch.readings(), batch.payload());
        }
        if let Err(error) = self.file.write_all_at(&self.buffer, self.end.0 - self.base.0) {
            return Err(self.undo_write(&error));
        }
        self.end = Position(self.end.0 + self.buffer.len() as u64);
        self.buffer.shrink_to(1 << 20);
        Ok(())
    }

    /// Syncs all written records, and returns the duration in seconds.
    pub(super) fn sync(&mut self) -> Result<f64, WriteFailure> {
        let start = Instant::now();
        self.file.sync().map_err(|error| WriteFailure::Poisoned(format!("sync {}: {error}", self.path().display())))?;
        self.durable = self.end;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Starts the next segment. It syncs the previous one first, so that only the newest can have a torn
    /// tail.
    ///
    /// If the segment cannot be created, there is no file of its name, and the previous one goes on. If the
    /// folder cannot be synced, it is unknown whether the name survives a crash: the log is poisoned.
    fn roll(&mut self) -> Result<(), WriteFailure> {
        if !self.is_synced() {
            self.sync()?;
        }
        self.file = segment::create(&*self.folder, self.end).map_err(|error| match error {
            LogError::Io { error, .. } if is_disk_full(&error) => WriteFailure::DiskFull(error.to_string()),
            other if other.is_out_of_files() => WriteFailure::OutOfFiles(other.to_string()),
            other => WriteFailure::Poisoned(other.to_string()),
        })?;
        let unsynced = |error| WriteFailure::Poisoned(format!("sync {}: {error}", self.folder.path().display()));
        self.folder.sync().map_err(unsynced)?;
        self.base = self.end;
        self.end = Position(self.base.0 + segment::Header::BYTES as u64);
        self.durable = self.end;
        // If this fails, the next cut saves it and reports the error.
        let _ = self.saved.advance(Checkpoint { position: Position::default(), durable: self.durable });
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.folder.path_of(&segment::name(self.base))
    }

    /// Removes the bytes that a failed write left behind the end, and syncs the removal. The requests get an
    /// error, so their readings must not reappear after a restart or a crash.
    fn undo_write(&self, error: &std::io::Error) -> WriteFailure {
        let failed = format!("write {}: {error}", self.path().display());
        let undone = self.file.set_len(self.end.0 - self.base.0).and_then(|()| self.file.sync());
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
