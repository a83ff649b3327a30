//! The appender: the only thing that writes to segments.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::batch::Batch;
use super::checkpoint::{Checkpoint, Saved};
use super::record;
use super::segment;
use super::{LogError, Position};
use crate::disk::{Folder, OpenFile, OpenMode, Space};

/// A group was not written.
#[derive(Debug)]
pub(super) enum WriteFailure {
    /// There was no space. Nothing of the group is in the log, and the next group may find space.
    DiskFull(String),
    /// Writing the group would have touched the reserve. Nothing of it is in the log.
    Reserved,
    /// The next segment could not be opened. Nothing of the group is in the log.
    OutOfFiles(String),
    /// What is on the disk is not known any more.
    Poisoned(String),
}

/// Writes groups of batches to the newest segment.
#[derive(Debug)]
pub(super) struct Appender {
    folder: Arc<dyn Folder>,
    saved: Arc<Saved>,
    segment_bytes: u64,
    file: Box<dyn OpenFile>,
    /// Where the newest segment begins.
    base: Position,
    /// Where the next record goes.
    end: Position,
    /// Up to where everything is synced.
    durable: Position,
    buffer: Vec<u8>,
}

impl Appender {
    /// Goes on at `end` of the segment that begins at `base`. All of it is synced.
    pub(super) fn resume(
        folder: Arc<dyn Folder>,
        saved: Arc<Saved>,
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

    /// The space on the disk of the log. Unlimited where the system does not say.
    pub(super) fn space(&self) -> Space {
        self.folder.space().unwrap_or(Space { free: u64::MAX, total: u64::MAX })
    }

    /// Starts the next segment if the newest has records, so that it can be removed once these are stored.
    pub(super) fn end_segment(&mut self) -> Result<(), WriteFailure> {
        if self.end.0 > self.base.0 + segment::Header::BYTES as u64 { self.roll() } else { Ok(()) }
    }

    /// Writes the batches, one record each, with one call. Not synced yet.
    pub(super) fn write<'a>(&mut self, batches: impl Iterator<Item = &'a Batch>) -> Result<(), WriteFailure> {
        if self.end.0 - self.base.0 >= self.segment_bytes {
            self.roll()?;
        }
        self.buffer.clear();
        for batch in batches {
            let position = Position(self.end.0 + self.buffer.len() as u64);
            record::encode(&mut self.buffer, position, self.durable, batch.readings(), batch.payload());
        }
        if let Err(error) = self.file.write_all_at(&self.buffer, self.end.0 - self.base.0) {
            return Err(self.take_back(&error));
        }
        self.end = Position(self.end.0 + self.buffer.len() as u64);
        self.buffer.shrink_to(1 << 20);
        Ok(())
    }

    /// Makes all that is written durable, and returns how long the disk took, in seconds.
    pub(super) fn sync(&mut self) -> Result<f64, WriteFailure> {
        let start = Instant::now();
        self.file.sync().map_err(|error| WriteFailure::Poisoned(format!("sync {}: {error}", self.path().display())))?;
        self.durable = self.end;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Starts the next segment. The one before is synced first, so that only the newest can have a torn tail.
    fn roll(&mut self) -> Result<(), WriteFailure> {
        if !self.is_synced() {
            self.sync()?;
        }
        self.file = segment::create(&*self.folder, self.end).map_err(|error| match error {
            LogError::Io { error, .. } if is_disk_full(&error) => WriteFailure::DiskFull(error.to_string()),
            other if other.is_out_of_files() => WriteFailure::OutOfFiles(other.to_string()),
            other => WriteFailure::Poisoned(other.to_string()),
        })?;
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

    /// Removes what a failed write left behind the end: whoever waits for it is refused, so it must not come
    /// back after a restart, nor after a crash, which the cut has to be synced for.
    fn take_back(&self, error: &std::io::Error) -> WriteFailure {
        let failed = format!("write {}: {error}", self.path().display());
        let taken_back = self.file.set_len(self.end.0 - self.base.0).and_then(|()| self.file.sync());
        if is_disk_full(error) && taken_back.is_ok() {
            WriteFailure::DiskFull(failed)
        } else {
            WriteFailure::Poisoned(failed)
        }
    }
}

fn is_disk_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}
