//! Small tools that every room may use. They know no room.

pub mod backoff;
pub mod clock;
pub mod cursor;
pub mod generations;
pub mod once_per_change;
