//! The reason why bytes cannot be decoded.

use crate::common::cursor::EndOfBytes;

/// Why bytes are not a chunk, blocks or a column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// A newer program wrote the chunk.
    #[error("version {0} is not known to this program")]
    Version(u8),
    /// The chunk, or one of its parts, is cut off.
    #[error("it ends too early")]
    Truncated,
    /// The chunk breaks its grammar.
    #[error("{0}")]
    Invalid(&'static str),
}

/// The error of a chunk or block with more than [`VALUES_MAX`](super::VALUES_MAX) values.
pub(super) const TOO_MANY_VALUES: ChunkError = ChunkError::Invalid("it has too many values");

impl From<EndOfBytes> for ChunkError {
    fn from(_: EndOfBytes) -> Self {
        Self::Truncated
    }
}
