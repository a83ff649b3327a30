//! Blocks: samples of one hour as columns of times and values.
//!
//! The format suits the 60 or 360 values that a device sends in an hour: headers of some 12 bytes, and one
//! pass of plain integer arithmetic. Times and values are integers (`values` scales decimals), and integers
//! are packed as residuals of a prediction (`integers`). Series whose times are the same share them.

mod bits;
mod decode;
mod encode;
mod integers;
mod values;

pub use decode::{Block, Blocks, Series};
pub use encode::BlockEncoder;

/// The most instants of a block. The limit gives each part of an hour its own bit widths, and makes a byte
/// stand for a bounded number of values.
const BLOCK_INSTANTS: usize = 512;

#[cfg(test)]
mod tests;
