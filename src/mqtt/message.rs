//! Messages, and their acknowledgements.

use std::time::Instant;

use mqtt_protocol_core::mqtt::common::ArcPayload;
use mqtt_protocol_core::mqtt::packet::{Qos, v3_1_1, v5_0};
use mqtt_protocol_core::mqtt::result_code::PubackReasonCode;

use super::frame::qos_bits;
use crate::ingest::Charged;

/// A message of a broker or device.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) topic: Box<str>,
    /// The payload; `None` if the message was too large, and skipped.
    pub(super) payload: Option<ArcPayload>,
    /// The acknowledgement that the message needs; none at quality of service 0.
    pub(super) receipt: Option<MessageReceipt>,
    /// Whether the broker has retained the message, so that it may be old.
    pub(super) is_retained: bool,
    /// Whether the sender has sent the message before (the flag DUP).
    pub(super) is_again: bool,
    /// The memory of the message, in bytes.
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
    /// The rates that the message is charged to while it waits for the log.
    pub(super) charged: Charged,
}

/// The acknowledgement that a message needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageReceipt {
    pub(super) packet_id: u16,
    /// Whether the quality of service is 2, which needs PUBREC in place of PUBACK.
    pub(super) is_exactly_once: bool,
}

/// The outcome of a message. PUBACK of version 5 tells it to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Outcome {
    /// A reading of the message is durable, or the message has no reading to store.
    #[default]
    Done,
    /// The message can never be stored: its size, its topic or its payload is wrong.
    Invalid,
    /// A rate refuses the message for now, or the device has too many metrics.
    OverQuota,
}

impl Outcome {
    /// The reason code of PUBACK in version 5; `None` for success.
    pub(super) const fn reason_code(self) -> Option<PubackReasonCode> {
        match self {
            Self::Done => None,
            Self::Invalid => Some(PubackReasonCode::PayloadFormatInvalid),
            Self::OverQuota => Some(PubackReasonCode::QuotaExceeded),
        }
    }
}

/// The memory of a message beyond the size of its packet, in bytes.
pub(super) const MESSAGE_OVERHEAD_BYTES: usize = 256;

impl Message {
    /// Makes a message that was skipped because it is too large.
    pub(super) fn too_large(topic: &str, packet_id: Option<u16>, flags: u8) -> Self {
        let is_exactly_once = qos_bits(flags) == 2;
        Self {
            topic: topic.into(),
            payload: None,
            receipt: packet_id.map(|packet_id| MessageReceipt { packet_id, is_exactly_once }),
            is_retained: flags & 1 != 0,
            is_again: flags & 8 != 0,
            bytes: topic.len() + MESSAGE_OVERHEAD_BYTES,
            arrived: Instant::now(),
            charged: Charged::Nothing,
        }
    }
}

/// Converts the PUBLISH of each version to a [`Message`].
///
/// The two types of the library have no common trait, so a macro writes both conversions.
macro_rules! from_publish {
    ($($version:ident),+) => {
        $(impl From<&$version::Publish> for Message {
            fn from(publish: &$version::Publish) -> Self {
                Self {
                    topic: publish.topic_name().into(),
                    bytes: publish.size() + MESSAGE_OVERHEAD_BYTES,
                    receipt: receipt(publish.qos(), publish.packet_id()),
                    is_retained: publish.retain(),
                    is_again: publish.dup(),
                    payload: Some(publish.payload().clone()),
                    arrived: Instant::now(),
                    charged: Charged::Nothing,
                }
            }
        })+
    };
}

from_publish!(v3_1_1, v5_0);

fn receipt(qos: Qos, packet_id: Option<u16>) -> Option<MessageReceipt> {
    let is_exactly_once = qos == Qos::ExactlyOnce;
    packet_id.filter(|_| qos != Qos::AtMostOnce).map(|packet_id| MessageReceipt { packet_id, is_exactly_once })
}
