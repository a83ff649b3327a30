//! Readings of a bucket as compressed columns of bytes.
//!
//! - **Blocks** are columns of times and values for samples that are sorted by identity: [`BlockEncoder`] and
//!   [`Blocks`].
//! - **Chunks** are what SQLite stores, with the names of the metrics: [`ChunkEncoder`] turns
//!   [`Contents`](crate::model::Contents) into a chunk, and [`Chunk`] reads it back.
//! - **`BSONColumn`** is the form that a MongoDB server unpacks: [`bson_column`].
//!
//! An hour of 60 one-decimal values takes 37 bytes as a block and 88 as `BSONColumn`, whose columns have a
//! literal and words of 8 bytes each. So `BSONColumn` is only for documents that a server unpacks.
//!
//! This room knows the model only: no store, no file, no clock. Whatever bytes it decodes, it answers with
//! columns or with a [`ChunkError`], and takes work and memory in proportion to the bytes of a block and to
//! the body of a chunk.

mod block;
pub mod bson_column;
mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod numbers;

pub use block::{Block, BlockEncoder, Blocks, Series};
pub use decode::{Chunk, ChunkError, Column, Readings};
pub use encode::ChunkEncoder;

/// The format version that [`ChunkEncoder`] writes.
const VERSION: u8 = 1;
/// The body is plain.
const PLAIN: u8 = 0;
/// The body is one zstd frame.
const ZSTD: u8 = 1;
/// Every reading has a value of the metric.
const ON_EVERY_READING: u8 = 0;
/// A bitmap says which readings have a value of the metric.
const ON_SOME_READINGS: u8 = 1;

/// The most bytes of a compressed body. SQLite accepts no larger value either.
const MAX_BODY_BYTES: usize = 1_000_000_000;

#[cfg(test)]
mod tests;
