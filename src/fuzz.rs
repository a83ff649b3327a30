//! Fuzz targets: one for each parser of bytes from outside the program.
//!
//! A [`Target`] takes any bytes and panics if an invariant is broken: nothing panics, accepted values survive
//! a round trip, the place in an error is inside the input, and recovery returns no record with a wrong
//! checksum. The invariants are in the `fuzz.rs` of each room.
//!
//! The tests run each target on its corpus in `tests/fuzz/corpus` and on mutations of it, the same in every
//! run. `make fuzz` runs the targets under libFuzzer, with coverage, for any time.

use crate::{access, codec, config, http, influxql, log, mqtt, pending, store, udp, wire};

#[cfg(test)]
mod tests;

/// A parser under test.
#[derive(Debug)]
pub struct Target {
    /// The name of the target and of the folder with its corpus.
    pub name: &'static str,
    /// Parses bytes. Panics if an invariant is broken.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 29] = [
    Target { name: "json", run: wire::fuzz::json },
    Target { name: "ndjson", run: wire::fuzz::ndjson },
    Target { name: "line_protocol", run: wire::fuzz::line_protocol },
    Target { name: "senml_json", run: wire::fuzz::senml_json },
    Target { name: "senml_cbor", run: wire::fuzz::senml_cbor },
    Target { name: "remote_write_1", run: wire::fuzz::remote_write_1 },
    Target { name: "remote_write_2", run: wire::fuzz::remote_write_2 },
    Target { name: "remote_read", run: wire::fuzz::remote_read },
    Target { name: "otlp", run: wire::fuzz::otlp },
    Target { name: "otlp_json", run: wire::fuzz::otlp_json },
    Target { name: "webhook", run: wire::fuzz::webhook },
    Target { name: "timestamp", run: wire::fuzz::timestamp },
    Target { name: "signed_datagram", run: access::fuzz::signed_datagram },
    Target { name: "datagram", run: udp::fuzz::datagram },
    Target { name: "mqtt", run: mqtt::fuzz::mqtt },
    Target { name: "mqtt_device", run: mqtt::fuzz::mqtt_device },
    Target { name: "log", run: log::fuzz::log },
    Target { name: "checkpoint", run: log::fuzz::checkpoint },
    Target { name: "blocks", run: codec::fuzz::blocks },
    Target { name: "bson_column", run: codec::fuzz::bson_column },
    Target { name: "chunk", run: codec::fuzz::chunk },
    Target { name: "payload", run: pending::fuzz::payload },
    Target { name: "config", run: config::fuzz::config },
    Target { name: "units", run: config::fuzz::units },
    Target { name: "query_string", run: http::fuzz::query_string },
    Target { name: "influxql", run: influxql::fuzz::query },
    Target { name: "authorization", run: http::fuzz::authorization },
    Target { name: "certificate", run: http::fuzz::certificate },
    Target { name: "bson", run: store::mongodb::fuzz::document },
];
