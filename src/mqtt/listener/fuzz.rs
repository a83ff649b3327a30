//! Invariants fuzzed on all bytes of a device, from its CONNECT on.

use super::session::{Received, Session};
use crate::mqtt::message::{Message, Outcome};

/// Reads the bytes of a device in two parts, and calls `pass` for each message.
///
/// Invariants: the answers begin with a packet that a server may send. `n` bytes of a device have answers of
/// at most 512 + 4 `n` bytes.
pub(in crate::mqtt) fn device(bytes: &[u8], mut pass: impl FnMut(&Message)) {
    let mut session = Session::new(4 << 10, 10);
    let half = bytes.len() / 2;
    for part in [&bytes[..half], &bytes[half..]] {
        let mut received = session.receive(part);
        if let Some(Received::Connect(connect)) = received.pop_if(|last| matches!(last, Received::Connect(_))) {
            assert!(received.is_empty(), "the packets behind CONNECT wait");
            session.accept(&connect, connect.client_id.is_empty().then_some("assigned"));
            received = session.receive(&[]);
        }
        for received in received {
            match received {
                Received::Connect(_) => panic!("a second CONNECT"),
                Received::Message(message) => {
                    assert!(message.topic.len() <= bytes.len());
                    if let Some(receipt) = message.receipt {
                        session.acknowledge(receipt, Outcome::Invalid, Some("why"));
                    }
                    pass(&message);
                }
                Received::Ended(ended) => {
                    session.end(&ended);
                    return check_answers(&session.out, bytes.len());
                }
            }
        }
    }
    assert!(session.partial_bytes() <= bytes.len());
    check_answers(&session.out, bytes.len());
}

fn check_answers(out: &[u8], bytes: usize) {
    assert!(out.len() <= 512 + 4 * bytes, "{} bytes answer {bytes}", out.len());
    let kind = out.first().map(|first| first >> 4);
    assert!(kind.is_none_or(|kind| [2, 4, 7, 9, 11, 13, 14].contains(&kind)), "{kind:?}");
}
