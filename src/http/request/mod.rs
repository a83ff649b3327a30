//! The parts of requests that several handlers read.
//!
//! `params` reads query parameters, `device_id` device IDs, and `body` receives and decompresses a body
//! within its limits. `turn` bounds how many large bodies are worked on at once.

pub(super) mod body;
pub(super) mod device_id;
pub(super) mod params;
pub(super) mod turn;
