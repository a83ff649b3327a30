//! Tests that the cost of packets is proportional to their size.
//!
//! Each case stretches one part of a packet, at two sizes. The test counts bytes allocated, bytes in use at
//! once and bytes of answers, which do not depend on the machine. `src/ingest/stretch` tests payloads.

use super::session::{Received, Session};
use crate::common::counting::counted;
use crate::mqtt::message::Outcome;

/// The smaller size of a case, in bytes. The larger size is four times that.
const BYTES: usize = 32 << 10;

/// The fixed cost in bytes, besides the cost for each byte.
const FIXED_BYTES: usize = 32 << 10;

/// The most bytes in use, allocated and answered for each byte that was sent.
///
/// The smallest message has 6 bytes. In memory, it has a topic, a payload that is shared, and a place in the
/// queue: some 300 bytes, which the queue counts.
const MOST: [usize; 3] = [64, 160, 4];

/// Makes a packet of less than 268 MB.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let (mut packet, mut length) = (vec![first], body.len());
    loop {
        packet.push((length & 0x7f) as u8 | if length >= 128 { 0x80 } else { 0 });
        length >>= 7;
        if length == 0 {
            break;
        }
    }
    packet.extend(body);
    packet
}

fn text(text: &[u8]) -> Vec<u8> {
    [&u16::try_from(text.len()).unwrap().to_be_bytes()[..], text].concat()
}

fn connect(is_v5: bool) -> Vec<u8> {
    let properties: &[u8] = if is_v5 { &[0] } else { &[] };
    packet(0x10, &[&text(b"MQTT"), &[if is_v5 { 5 } else { 4 }, 2, 0, 60][..], properties, &text(b"d")].concat())
}

/// Makes about `bytes` bytes of one property, behind their length.
fn properties(bytes: usize, one: &[u8]) -> Vec<u8> {
    let all = one.repeat(bytes / one.len());
    packet(0, &all)[1..].to_vec()
}

/// The cases: name, whether it is MQTT 5, and about `bytes` bytes of a device.
fn cases(bytes: usize) -> Vec<(&'static str, bool, Vec<u8>)> {
    let user_property = [0x26, 0, 1, b'k', 0, 1, b'v'];
    let long_property = [&[0x26][..], &text(b"k"), &text(&[b'v'; 1_000])].concat();
    let many = |one: Vec<u8>| one.repeat(bytes / one.len());
    let message = |properties: Vec<u8>| packet(0x32, &[&text(b"t")[..], &[0, 1], &properties].concat());
    vec![
        ("tiny messages", false, many(packet(0x30, &text(b"t")))),
        ("tiny messages of version 5", true, many(packet(0x30, &[&text(b"t")[..], &[0]].concat()))),
        ("tiny messages with an acknowledgement", false, many(packet(0x32, &[&text(b"t")[..], &[0, 1]].concat()))),
        ("one large payload", true, packet(0x30, &[&text(b"t"), &[0][..], &vec![b'x'; bytes]].concat())),
        ("long topics", false, many(packet(0x30, &text(&[b'/'; 60_000][..bytes.min(60_000) - 10])))),
        ("a message that is too large", true, packet(0x30, &[&text(b"t"), &[0][..], &vec![b'x'; 64 * bytes]].concat())),
        ("user properties", true, message(properties(bytes, &user_property))),
        ("long user properties", true, message(properties(bytes, &long_property))),
        ("messages with a user property", true, many(message(properties(7, &user_property)))),
        ("pings", true, many(vec![0xc0, 0])),
        ("subscriptions", true, many(packet(0x82, &[&[0, 1, 0][..], &text(b"a"), &[0]].concat()))),
        ("one subscription to many filters", true, {
            let filters = [&text(b"a")[..], &[0]].concat();
            packet(0x82, &[&[0, 1, 0][..], &filters.repeat(bytes / filters.len())].concat())
        }),
        ("unsubscriptions", false, many(packet(0xa2, &[&[0, 1][..], &text(b"a")].concat()))),
        ("ends of quality of service 2", true, many(vec![0x62, 2, 0, 1])),
        ("half a packet", true, packet(0x30, &vec![b'x'; 2 * bytes])[..bytes].to_vec()),
    ]
}

/// Counts the bytes in use, allocated and answered. `bytes` arrive in parts.
fn cost(is_v5: bool, bytes: &[u8], part: usize) -> [usize; 3] {
    let mut session = Session::new(1 << 20, u16::MAX);
    let Some(Received::Connect(first)) = session.receive(&connect(is_v5)).pop() else { panic!("a CONNECT") };
    session.accept(&first, None);
    session.out.clear();
    let (answered, allocated) = counted(|| {
        let (mut kept, mut answered) = (Vec::new(), 0);
        for part in bytes.chunks(part) {
            for received in session.receive(part) {
                let Received::Message(message) = received else { panic!("{received:?}") };
                if let Some(receipt) = message.receipt {
                    session.acknowledge(receipt, Outcome::Invalid, Some("why"));
                }
                kept.push(message);
            }
            answered += session.out.len();
            session.out.clear();
        }
        answered
    });
    [allocated.peak, allocated.total, answered]
}

#[test]
fn what_a_device_sends_costs_no_more_than_its_size() {
    for part in [100, 16 << 10] {
        for ((name, is_v5, small), (_, _, large)) in cases(BYTES).into_iter().zip(cases(4 * BYTES)) {
            let [of_small, of_large] = [&small, &large].map(|bytes| cost(is_v5, bytes, part));
            let factors = of_large.map(|cost| format!("{:.1}", cost as f64 / large.len() as f64));
            println!(
                "{name}, in parts of {part}: in use {}, allocated {}, answered {}",
                factors[0], factors[1], factors[2]
            );
            for (place, most) in MOST.into_iter().enumerate() {
                assert!(of_small[place] <= most * small.len() + FIXED_BYTES, "{name}: {of_small:?}");
                assert!(of_large[place] <= most * large.len() + FIXED_BYTES, "{name}: {of_large:?}");
                assert!(
                    of_large[place] <= 5 * of_small[place] + FIXED_BYTES,
                    "{name} grows: {of_small:?} {of_large:?}"
                );
            }
        }
    }
}

/// A connection that is not authenticated keeps little, whatever the client sends.
#[test]
fn a_connection_without_a_client_keeps_little() {
    for bytes in [packet(0x10, &vec![b'x'; 1 << 20]), packet(0x30, &vec![b'x'; 1 << 20]), vec![0x10; 1 << 20]] {
        let mut session = Session::new(1 << 20, 100);
        let (has_ended, allocated) = counted(|| {
            bytes.chunks(1_000).any(|part| matches!(session.receive(part).last(), Some(Received::Ended(_))))
        });
        assert!(has_ended && allocated.peak <= 64 << 10, "{allocated:?}");
    }
}
