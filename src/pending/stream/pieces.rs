//! The memory of a stream: pieces of one size, which never move.
//!
//! The buckets of a fleet grow in step. If a bucket grew by moving to a larger buffer, the freed buffers of
//! all smaller sizes would stay with the allocator. Freed pieces of one size fit the next bucket. The size is
//! a power of two, because the allocator rounds other sizes up to align them.

use std::sync::Arc;

/// The bytes of a stream that fit into a piece.
///
/// A reading each minute fills three pieces in an hour.
pub(super) const PIECE_LEN: usize = 56;

/// The most pieces that a snapshot copies.
pub(super) const PIECES_MAX: u8 = 16;

/// The memory of a piece.
pub(super) const PIECE_BYTES: usize = size_of::<Piece>();

/// The memory of [`Sealed`] without its pieces, with the counts of [`Arc`].
pub(super) const SEALED_BYTES: usize = size_of::<Sealed>() + 2 * size_of::<usize>();

#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) before: Option<Box<Self>>,
    pub(super) bytes: [u8; PIECE_LEN],
}

impl Piece {
    /// Makes an empty piece after another one.
    #[expect(clippy::unnecessary_box_returns, reason = "a piece is moved once")]
    pub(super) fn after(before: Option<Box<Self>>) -> Box<Self> {
        Box::new(Self { before, bytes: [0; PIECE_LEN] })
    }

    /// Returns this piece and those before it, the newest first.
    fn chain(this: Option<&Self>) -> impl Iterator<Item = &[u8]> {
        std::iter::successors(this, |piece| piece.before.as_deref()).map(|piece| piece.bytes.as_slice())
    }
}

/// Full pieces of a stream, which snapshots share.
#[derive(Debug)]
pub(super) struct Sealed {
    before: Option<Arc<Self>>,
    pieces: Box<Piece>,
    /// The number of pieces in this `Sealed` and in all `Sealed` before it.
    count: u32,
}

impl Sealed {
    /// Seals [`PIECES_MAX`] full pieces. Copies nothing.
    pub(super) fn after(before: Option<Arc<Self>>, pieces: Box<Piece>) -> Arc<Self> {
        let count = u32::from(PIECES_MAX) + before.as_ref().map_or(0, |before| before.count);
        Arc::new(Self { before, pieces, count })
    }

    /// The memory of all sealed pieces.
    pub(super) fn bytes(this: Option<&Arc<Self>>) -> usize {
        let pieces = this.map_or(0, |sealed| sealed.count as usize);
        pieces * PIECE_BYTES + pieces / usize::from(PIECES_MAX) * SEALED_BYTES
    }
}

impl Drop for Sealed {
    /// Frees a long chain without recursion.
    fn drop(&mut self) {
        let mut next = self.before.take();
        while let Some(mut sealed) = next.and_then(Arc::into_inner) {
            next = sealed.before.take();
        }
    }
}

/// A stream as it was at one moment, for readers.
#[derive(Debug)]
pub(in crate::pending) struct Packed {
    pub(super) sealed: Option<Arc<Sealed>>,
    pub(super) piece: Option<Box<Piece>>,
    /// The bytes in use of the newest piece.
    pub(super) used: u8,
    /// The number of values.
    pub(super) values: u32,
}

impl Packed {
    /// The number of values.
    pub(in crate::pending) const fn values(&self) -> usize {
        self.values as usize
    }

    /// Returns the bytes of the stream.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(usize::from(PIECES_MAX));
        pieces.extend(Piece::chain(self.piece.as_deref()));
        let sealed = std::iter::successors(self.sealed.as_deref(), |sealed| sealed.before.as_deref());
        pieces.extend(sealed.flat_map(|sealed| Piece::chain(Some(&sealed.pieces))));
        if let Some(newest) = pieces.first_mut() {
            *newest = &newest[..usize::from(self.used)];
        }
        pieces.reverse();
        pieces.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_chain_is_freed_without_recursion() {
        let mut newest = None;
        for _ in 0..200_000 {
            newest = Some(Sealed::after(newest.take(), Piece::after(None)));
        }
        let shared = newest.clone();
        drop(newest);
        assert_eq!(shared.map(|sealed| sealed.count), Some(200_000 * u32::from(PIECES_MAX)));
    }

    #[test]
    fn a_piece_is_a_cache_line() {
        assert_eq!((PIECE_BYTES, SEALED_BYTES), (64, 40));
    }
}
