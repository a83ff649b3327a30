//! The parts of requests that several handlers read: query parameters, device IDs, bodies.
//!
//! `body` receives and decompresses a body within its limits.

pub(super) mod body;
pub(super) mod device_id;
pub(super) mod params;
