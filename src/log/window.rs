//! A window over a segment: it reads the file piece by piece, so that memory does not depend on its size.

use std::io::Result;
use std::ops::{Deref, Range};
use std::path::Path;

use super::record::{self, Header};
use super::{LogError, Position};
use crate::disk::OpenFile;

/// The bytes of one read. A larger record takes one larger read.
const PIECE_BYTES: usize = if cfg!(test) { 48 } else { 1 << 20 };

/// Reads a file through one buffer, mostly forwards.
#[derive(Debug)]
pub(super) struct Window<F> {
    file: F,
    /// The offset at which the window ends: it returns no bytes behind it.
    pub(super) end: u64,
    /// The offset of the first byte in the buffer.
    start: u64,
    buffer: Vec<u8>,
}

impl<'o, F: Deref<Target = dyn OpenFile + 'o>> Window<F> {
    /// A window over the bytes of a file before `end`.
    pub(super) const fn new(file: F, end: u64) -> Self {
        Self { file, end, start: 0, buffer: Vec::new() }
    }

    /// The bytes in the buffer from the offset `at` on.
    ///
    /// They are at least `count` bytes, unless the window or the file ends before.
    pub(super) fn bytes(&mut self, at: u64, count: usize) -> Result<&[u8]> {
        let wanted = (at + count as u64).min(self.end);
        if at < self.start || wanted > self.start + self.buffer.len() as u64 {
            let piece = self.end.saturating_sub(at).min(count.max(PIECE_BYTES) as u64) as usize;
            self.start = at;
            self.buffer.resize(piece, 0);
            let have = self.file.fill(&mut self.buffer, at).inspect_err(|_| self.buffer.clear())?;
            self.buffer.truncate(have);
        }
        Ok(self.buffer.get((at - self.start) as usize..).unwrap_or_default())
    }

    /// The header and payload of the record at the offset `at`, which is `position` in the log. `None`: there
    /// is no good record ([`record::decode`]).
    pub(super) fn record(&mut self, at: u64, position: Position) -> Result<Option<(Header, &[u8])>> {
        let header = Header::decode(self.bytes(at, Header::BYTES)?).filter(|header| header.durable <= position);
        let Some(header) = header else { return Ok(None) };
        Ok(record::decode(self.bytes(at, header.record_bytes())?, position))
    }
}

/// A file with its path, for errors.
pub(super) type Named<'a> = (&'a dyn OpenFile, &'a Path);

/// Copies a range of bytes to the offset `at` of another file, or of the same one.
pub(super) fn copy(from: Named<'_>, range: Range<u64>, to: Named<'_>, at: u64) -> std::result::Result<(), LogError> {
    let mut piece = Vec::new();
    let mut next = range.start;
    while next < range.end {
        piece.resize((range.end - next).min(PIECE_BYTES as u64) as usize, 0);
        let have = from.0.fill(&mut piece, next).map_err(LogError::io("read", from.1))?;
        if have < piece.len() {
            return Err(LogError::io("read", from.1)(std::io::ErrorKind::UnexpectedEof.into()));
        }
        to.0.write_all_at(&piece, at + next - range.start).map_err(LogError::io("write", to.1))?;
        next += have as u64;
    }
    Ok(())
}
