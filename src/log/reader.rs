//! Reading records in order.

use std::sync::Arc;

use super::record::{self, Header, Kind};
use super::segment;
use super::{LogError, Position};
use crate::disk::{Folder, OpenFile, OpenMode};

/// The bytes of one read. A larger record takes one larger read.
const CHUNK_BYTES: u64 = 1 << 20;

/// Reads records one after the other, across segments.
#[derive(Debug)]
pub struct Reader {
    folder: Arc<dyn Folder>,
    position: Position,
    segment: Option<(Position, Box<dyn OpenFile>)>,
    buffer: Vec<u8>,
    /// The position of the buffer's first byte.
    buffered_at: Position,
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
    /// The number of readings in the payload.
    pub readings: u32,
    /// The payload: of a [`super::Batch`], a [`super::DeletionRecord`] or a [`super::MetadataRecord`].
    pub payload: &'a [u8],
}

impl Reader {
    pub(super) fn new(folder: Arc<dyn Folder>, position: Position) -> Self {
        Self { folder, position, segment: None, buffer: Vec::new(), buffered_at: position }
    }

    /// The position of the next record.
    pub const fn position(&self) -> Position {
        self.position
    }

    /// The next record before `readable`, if any. The log has returned `readable` as the end of the readable
    /// records.
    ///
    /// # Errors
    /// When a segment cannot be read, or a record was damaged after the log was opened.
    pub fn next(&mut self, readable: Position) -> Result<Option<Record<'_>>, LogError> {
        while self.position < readable {
            if !self.buffer_record(readable)? {
                self.open_segment()?;
                continue;
            }
            let position = self.position;
            let start = (position.0 - self.buffered_at.0) as usize; // `buffer_record` has put it into the buffer
            let Some((header, _)) = record::decode(&self.buffer[start..], position) else {
                return Err(self.damaged());
            };
            self.position = Position(position.0 + header.record_bytes() as u64);
            if !header.is_filler() {
                let payload = &self.buffer[start + Header::BYTES..][..header.len as usize];
                let Header { kind, readings, .. } = header;
                return Ok(Some(Record { position, next: self.position, kind, readings, payload }));
            }
        }
        Ok(None)
    }

    /// Reads the whole record at the position into the buffer. False: the open segment ends before it.
    fn buffer_record(&mut self, readable: Position) -> Result<bool, LogError> {
        let buffered = self.buffered();
        let needed = Header::decode(buffered).map_or(Header::BYTES, |header| header.record_bytes());
        if buffered.len() >= needed && needed > Header::BYTES {
            return Ok(true);
        }
        if !self.fill(CHUNK_BYTES, readable)? {
            return Ok(false);
        }
        let Some(header) = Header::decode(self.buffered()) else { return Err(self.damaged()) };
        if self.buffered().len() < header.record_bytes() {
            self.fill(header.record_bytes() as u64, readable)?;
        }
        Ok(true)
    }

    fn buffered(&self) -> &[u8] {
        let start = self.position.0.saturating_sub(self.buffered_at.0);
        self.buffer.get(start as usize..).unwrap_or_default()
    }

    /// Reads from the position on, but not beyond `readable`: the bytes there may be half written.
    fn fill(&mut self, bytes: u64, readable: Position) -> Result<bool, LogError> {
        let Some((base, file)) = &self.segment else { return Ok(false) };
        let wanted = bytes.min(readable.0 - self.position.0) as usize;
        self.buffer.resize(wanted, 0);
        let filled = file.fill(&mut self.buffer, self.position.0 - base.0);
        let have = filled.map_err(LogError::io("read", &self.folder.path_of(&segment::name(*base))))?;
        self.buffer.truncate(have);
        self.buffered_at = self.position;
        Ok(have > 0)
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
        self.segment = Some((base, file));
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
