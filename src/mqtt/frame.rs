//! Finds packets in the bytes of a connection.
//!
//! A message that is too large is skipped. Its topic and packet ID are found, so that it can be acknowledged.
//! If the server closed the connection instead, the sender would send the message again each time.

/// The type of PUBLISH, in the high half of the first byte of a packet.
const PUBLISH: u8 = 0x30;

/// The capacity in bytes that an empty inbox may keep.
const KEPT_BYTES: usize = 1 << 10;

/// The bytes of a packet that has not arrived as a whole.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// The number of bytes to come that belong to a skipped packet.
    to_skip: usize,
}

impl Inbox {
    /// Calls `pass` for each packet: with its first byte, its bytes and its frame.
    ///
    /// `bytes` are the bytes that have just arrived. A packet may have `max_bytes`. If `pass` returns false,
    /// the call ends. The bytes behind the last passed packet stay in the inbox.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        max_bytes: usize,
        mut pass: impl FnMut(u8, &[u8], Frame<'_>) -> bool,
    ) {
        let skipped = self.to_skip.min(bytes.len());
        self.to_skip -= skipped;
        let bytes = &bytes[skipped..];
        let mut kept = std::mem::take(&mut self.bytes);
        let rest = if kept.is_empty() {
            self.pass_all(bytes, max_bytes, &mut pass)
        } else {
            kept.extend_from_slice(bytes);
            self.pass_all(&kept, max_bytes, &mut pass)
        };
        let rest = rest.len();
        if kept.is_empty() {
            kept.extend_from_slice(&bytes[bytes.len() - rest..]);
        } else {
            kept.drain(..kept.len() - rest);
        }
        if kept.is_empty() && kept.capacity() > KEPT_BYTES {
            kept = Vec::new();
        }
        self.bytes = kept;
    }

    /// Calls `pass` for each packet of `rest`, and returns the bytes behind them.
    fn pass_all<'b>(
        &mut self,
        mut rest: &'b [u8],
        max_bytes: usize,
        pass: &mut impl FnMut(u8, &'b [u8], Frame<'b>) -> bool,
    ) -> &'b [u8] {
        while let Some(&first) = rest.first() {
            let frame = Frame::find(rest, max_bytes);
            let bytes = match &frame {
                Frame::Incomplete => break,
                Frame::Whole { bytes, .. } => *bytes,
                Frame::TooLarge { bytes, .. } => {
                    let here = rest.len().min(*bytes);
                    self.to_skip = bytes - here;
                    here
                }
                Frame::Invalid(_) => rest.len(),
            };
            let (packet, behind) = rest.split_at(bytes);
            rest = behind;
            if !pass(first, packet, frame) {
                break;
            }
        }
        rest
    }

    /// The number of bytes of the incomplete packet.
    pub(super) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The number of bytes to the end of the incomplete or skipped packet, as far as its length is known.
    ///
    /// These bytes complete at most one packet, and none of them belongs to the next one.
    pub(super) fn lacking(&self) -> usize {
        if self.to_skip > 0 {
            return self.to_skip;
        }
        let end = match sizes(&self.bytes) {
            Ok(Some((packet_bytes, _))) => packet_bytes,
            _ => 2, // the smallest packet
        };
        end.saturating_sub(self.bytes.len()).max(1)
    }
}

/// Reads the sizes of a packet and of its head, in bytes. `None`: the head is incomplete.
fn sizes(bytes: &[u8]) -> Result<Option<(usize, usize)>, &'static str> {
    let mut length = 0;
    for place in 0..4 {
        let head_bytes = 2 + place;
        let Some(&byte) = bytes.get(head_bytes - 1) else { return Ok(None) };
        length |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(Some((head_bytes + length, head_bytes)));
        }
    }
    Err("a length of more than four bytes")
}

/// The quality of service in the flags of PUBLISH.
pub(super) const fn qos_bits(flags: u8) -> u8 {
    flags >> 1 & 3
}

/// The result of the search for a packet at the start of bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'b> {
    /// More bytes are needed.
    Incomplete,
    /// A whole packet: its size in bytes, and its `body` behind the length field.
    Whole { bytes: usize, body: &'b [u8] },
    /// A message that is too large.
    ///
    /// `bytes` is its size, and `flags` is the lower half of its first byte.
    TooLarge { bytes: usize, topic: &'b str, packet_id: Option<u16>, flags: u8 },
    /// No packet begins with these bytes, for this reason.
    Invalid(&'static str),
}

impl<'b> Frame<'b> {
    fn find(bytes: &'b [u8], max_bytes: usize) -> Self {
        let Some(&first) = bytes.first() else { return Self::Incomplete };
        let (total, head_bytes) = match sizes(bytes) {
            Ok(Some(sizes)) => sizes,
            Ok(None) => return Self::Incomplete,
            Err(why) => return Self::Invalid(why),
        };
        if total <= max_bytes {
            return bytes.get(head_bytes..total).map_or(Self::Incomplete, |body| Self::Whole { bytes: total, body });
        }
        if first & 0xf0 != PUBLISH {
            return Self::Invalid("a packet that is larger than max_packet_bytes, and no message");
        }
        Self::too_large(&bytes[head_bytes..], total, total - head_bytes, first & 0x0f)
    }

    /// Reads the head of a message that is too large.
    fn too_large(body: &'b [u8], bytes: usize, length: usize, flags: u8) -> Self {
        let Some((topic_bytes, rest)) = body.split_first_chunk::<2>() else { return Self::Incomplete };
        let topic_bytes = usize::from(u16::from_be_bytes(*topic_bytes));
        let has_id = qos_bits(flags) != 0;
        if 2 + topic_bytes + if has_id { 2 } else { 0 } > length {
            return Self::Invalid("a topic that is longer than its message");
        }
        let Some((topic, rest)) = rest.split_at_checked(topic_bytes) else { return Self::Incomplete };
        let packet_id = match rest.first_chunk::<2>() {
            _ if !has_id => None,
            Some(id) => Some(u16::from_be_bytes(*id)),
            None => return Self::Incomplete,
        };
        match std::str::from_utf8(topic) {
            Ok(topic) => Self::TooLarge { bytes, topic, packet_id, flags },
            Err(_) => Self::Invalid("a topic that is not UTF-8"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(topic: &str, payload_bytes: usize) -> Vec<u8> {
        let mut body = u16::try_from(topic.len()).unwrap().to_be_bytes().to_vec();
        body.extend(topic.bytes());
        body.extend([0, 7, 0]);
        body.resize(body.len() + payload_bytes, b'1');
        let (mut packet, mut length) = (vec![PUBLISH | 2], body.len());
        loop {
            let more = if length >= 128 { 0x80 } else { 0 };
            packet.push((length & 0x7f) as u8 | more);
            length >>= 7;
            if length == 0 {
                break;
            }
        }
        packet.extend(body);
        packet
    }

    #[test]
    fn a_packet_is_found_however_few_bytes_have_arrived() {
        let small = publish("a/b", 20);
        let large = publish("a/b", 2_000);
        for have in 0..small.len() {
            assert_eq!(Frame::find(&small[..have], 1_000), Frame::Incomplete);
        }
        assert_eq!(Frame::find(&small, 1_000), Frame::Whole { bytes: small.len(), body: &small[2..] });
        assert_eq!(
            Frame::find(&small[..10], 20),
            Frame::TooLarge { bytes: small.len(), topic: "a/b", packet_id: Some(7), flags: 2 }
        );
        for have in 0..10 {
            assert_eq!(Frame::find(&large[..have], 1_000), Frame::Incomplete, "{have}");
        }
        assert!(matches!(Frame::find(&large[..11], 1_000), Frame::TooLarge { .. }));
    }

    #[test]
    fn bytes_that_begin_no_packet_are_refused_before_memory_is_taken_for_them() {
        assert!(matches!(Frame::find(&[0x30, 0xff, 0xff, 0xff, 0xff, 1], 1_000), Frame::Invalid(_)));
        assert!(matches!(Frame::find(&[0x20, 0xff, 0xff, 0xff, 0x7f], 1_000), Frame::Invalid(_)));
        let short = [0x32, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff];
        assert_eq!(Frame::find(&short, 1_000), Frame::Incomplete);
        assert!(matches!(Frame::find(&[0x32, 0x80, 8, 0xff, 0xff], 100), Frame::Invalid(_)));
        let no_text = [0x32, 0x80, 8, 0, 1, 0xff, 0, 1];
        assert!(matches!(Frame::find(&no_text, 100), Frame::Invalid(_)));
    }

    #[test]
    fn packets_are_the_same_however_the_bytes_are_cut() {
        let all = [publish("a/b", 20), publish("large", 2_000), vec![0xc0, 0], publish("c", 900)].concat();
        for cut in [1, 2, 3, 7, 100, 1_000, all.len()] {
            let (mut inbox, mut found) = (Inbox::default(), Vec::new());
            for part in all.chunks(cut) {
                inbox.receive(part, 1_000, |first, packet, frame| {
                    found.push(match frame {
                        Frame::Whole { bytes, .. } => (first, bytes == packet.len(), "whole"),
                        Frame::TooLarge { topic, .. } => (first, topic == "large", "large"),
                        _ => (first, false, "neither"),
                    });
                    true
                });
            }
            let expected = [(0x32, true, "whole"), (0x32, true, "large"), (0xc0, true, "whole"), (0x32, true, "whole")];
            assert_eq!((found.as_slice(), inbox.len()), (&expected[..], 0), "{cut}");
            assert!(inbox.bytes.capacity() <= KEPT_BYTES);
        }
    }

    #[test]
    fn the_lacking_bytes_complete_at_most_one_packet() {
        let all = [publish("a/b", 20), publish("large", 2_000), vec![0xc0, 0], publish("c", 900)].concat();
        for most in [1, 7, usize::MAX] {
            let (mut inbox, mut rest, mut found) = (Inbox::default(), &all[..], 0);
            while !rest.is_empty() {
                let (part, behind) = rest.split_at(inbox.lacking().min(most));
                let mut passed = 0;
                inbox.receive(part, 1_000, |_, _, _| {
                    passed += 1;
                    true
                });
                assert!(passed == 0 || passed == 1 && inbox.len() == 0, "{passed}");
                (rest, found) = (behind, found + passed);
            }
            assert_eq!((found, inbox.len()), (4, 0), "{most}");
        }
    }
}
