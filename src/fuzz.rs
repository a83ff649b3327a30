//! Hostile input: an entry for each place that reads bytes which somebody else wrote.
//!
//! A [`Target`] takes any bytes and panics when a promise is broken: that nothing panics, that what is
//! accepted comes back the same when it is written again, that a place named in an error lies in the input,
//! that recovery gives out nothing whose checksum is wrong. What is to be held against what stands in each
//! room, in its `fuzz.rs`.
//!
//! The tests run each target on its corpus in `tests/fuzz/corpus` and on mutations of it, the same at every
//! run. `make fuzz` runs them under libFuzzer, with coverage, for as long as one likes.

use crate::{access, codec, config, http, log, pending, store, udp, wire};

#[cfg(test)]
mod tests;

/// A place that reads foreign bytes.
#[derive(Debug)]
pub struct Target {
    /// Its name, which is also that of the folder with its corpus.
    pub name: &'static str,
    /// Reads such bytes. Panics when a promise is broken.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 18] = [
    Target { name: "json", run: wire::fuzz::json },
    Target { name: "ndjson", run: wire::fuzz::ndjson },
    Target { name: "line_protocol", run: wire::fuzz::line_protocol },
    Target { name: "senml_json", run: wire::fuzz::senml_json },
    Target { name: "senml_cbor", run: wire::fuzz::senml_cbor },
    Target { name: "timestamp", run: wire::fuzz::timestamp },
    Target { name: "signed_datagram", run: access::fuzz::signed_datagram },
    Target { name: "datagram", run: udp::fuzz::datagram },
    Target { name: "log", run: log::fuzz::log },
    Target { name: "checkpoint", run: log::fuzz::checkpoint },
    Target { name: "chunk", run: codec::fuzz::chunk },
    Target { name: "payload", run: pending::fuzz::payload },
    Target { name: "config", run: config::fuzz::config },
    Target { name: "units", run: config::fuzz::units },
    Target { name: "query_string", run: http::fuzz::query_string },
    Target { name: "authorization", run: http::fuzz::authorization },
    Target { name: "certificate", run: http::fuzz::certificate },
    Target { name: "bson", run: store::mongodb::fuzz::document },
];
