//! Chunks: the readings of a bucket as SQLite stores them.
//!
//! A chunk has the names of the metrics, and blocks of their values.

mod decode;
mod encode;

pub use decode::Chunk;
pub use encode::ChunkEncoder;

/// The format version of chunks.
const VERSION: u8 = 1;
/// The packing of a body that is not compressed.
const PLAIN: u8 = 0;
/// The packing of a body that is one zstd frame.
const ZSTD: u8 = 1;

/// The most bytes of a body that is compressed, counted before the compression.
///
/// SQLite accepts no larger value either.
const MAX_BODY_BYTES: usize = 1_000_000_000;

#[cfg(test)]
mod tests;
