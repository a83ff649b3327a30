//! Chunks: the readings of a bucket as SQLite stores them.
//!
//! A chunk is blocks with the names of their metrics. Version 1, raw doubles in a zstd frame, is only read.

mod decode;
mod encode;
mod version_1;

pub use decode::Chunk;
pub use encode::ChunkEncoder;

/// The format version that [`ChunkEncoder`] writes.
const VERSION: u8 = 2;
/// The body is plain.
const PLAIN: u8 = 0;
/// The body is one zstd frame.
const ZSTD: u8 = 1;

/// The most bytes of a compressed body. SQLite accepts no larger value either.
const MAX_BODY_BYTES: usize = 1_000_000_000;

#[cfg(test)]
mod tests;
