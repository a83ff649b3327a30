//! Invariants fuzzed on datagrams.

use metrics::Counter;

use super::datagram;
use super::sequences::{Numbering, Sequences};
use crate::access::DeviceScope;
use crate::config::LineProtocol;
use crate::wire::{fuzz::ParsedBody, json};

/// Checks the content of a datagram.
pub fn datagram(content: &[u8]) {
    let mut found = ParsedBody::default();
    let sequences = Sequences::new(4, Counter::noop());
    let numbering = Numbering { sequences: &sequences, scope: DeviceScope::all() };
    let json = json::Options::default();
    datagram::parse(content, datagram::format_of(content), &json, &LineProtocol::default(), numbering, &mut found);
    found.check(content);
}
