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
mod chunk;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod numbers;

pub use block::{Block, BlockEncoder, Blocks, Series};
pub use chunk::{Chunk, ChunkEncoder};
pub use error::ChunkError;

/// The most values of a chunk, and of an hour that a late write merges: 256 MiB of samples.
///
/// A device that sends 4,600 values each second reaches this in an hour. Without the limit, a few KiB could
/// claim many more.
pub const VALUES_MAX: usize = 1 << 24;
