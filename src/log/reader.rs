//! Reads the records of an open log, in order.

use std::sync::Arc;

use super::record::{Header, Kind};
use super::segment;
use super::window::Window;
use super::{LogError, Position};
use crate::disk::{Folder, OpenFile, OpenMode};

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

    /// The next record before `readable`, if any. The log has returned `readable` as the end of the readable
    /// records.
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

    /// The header of the good record at the position. `None`: the open segment ends before it.
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
