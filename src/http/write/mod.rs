//! The paths that take readings: one file for each protocol, and one common path.
//!
//! The file of a protocol checks parameters and media type, and calls `receive` with its parser (from the
//! room `wire`). `receive` reads the body, parses it into the admission of the room `ingest`, and waits until
//! the accepted readings are durable. The file of the protocol makes the answer from the receipt. Answers in
//! JSON have `receipt_notes`; answers to senders of samples have the counts of `samples`.

pub(super) mod dead_letters;
pub(super) mod influx;
pub(super) mod otlp;
pub(super) mod readings;
pub(super) mod receipt_notes;
mod receive;
pub(super) mod remote_write;
mod samples;
pub(super) mod webhook;
