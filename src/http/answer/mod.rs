//! The parts of answers that several handlers use.
//!
//! `format` chooses the format and the compression that a client asks for, and writes numbers and cells.
//! `etag` tags and compresses whole answers. `body_in_pieces` sends an answer that several tasks wrote.

pub(super) mod body_in_pieces;
pub(super) mod etag;
pub(super) mod format;
