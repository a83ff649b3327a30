//! Small tools that every room may use. They know no room.

pub mod backoff;
pub mod clock;
#[cfg(test)]
pub(crate) mod counting;
pub mod cursor;
pub mod finding;
pub mod generations;
pub mod interner;
pub mod joined;
pub mod leb128;
pub mod lingering_close;
pub mod once_per_change;
pub mod one_line;
pub mod prefetch;
pub mod printable;
pub mod regular_file;
pub mod similar;
pub mod small_file;
pub mod version;
pub(crate) mod work;
pub mod zigzag;
