//! The server's side of MQTT without a socket: bytes in, events and bytes out.
//!
//! The codecs of `mqtt-protocol-core` read and make the packets. Its state machine of a server is not used.
//! It keeps state for the delivery of messages, which this server never does. And in version 0.7.9 it panics
//! at a CONNECT with a Topic Alias Maximum of 0, which MQTT 5 allows.

use std::sync::Arc;

use mqtt_protocol_core::mqtt::packet::{
    AssignedClientIdentifier, GenericPacketTrait, MaximumQos, Properties, Property, Qos, ReasonString, ReceiveMaximum,
    SessionExpiryInterval, v3_1_1, v5_0,
};
use mqtt_protocol_core::mqtt::result_code::{
    ConnectReasonCode, DisconnectReasonCode, MqttError as PacketError, PubcompReasonCode, SubackReasonCode,
    SubackReturnCode, UnsubackReasonCode,
};

use super::ended::{Ended, Refusal};
use crate::mqtt::frame::{Frame, Inbox, qos_bits};
use crate::mqtt::message::{Message, MessageReceipt, Outcome};

/// The size of the largest CONNECT, in bytes.
///
/// Until it is authenticated, a connection has no more bytes than this.
const MAX_CONNECT_BYTES: usize = 16 << 10;

/// The first byte of a CONNECT.
const CONNECT: u8 = 0x10;

/// The place of the flags in the body of a CONNECT.
const FLAGS_OFFSET: usize = 7;

/// The flag of CONNECT for a password. The next higher one is for a user name.
const PASSWORD_FLAG: u8 = 0x40;

/// The longest client ID, in bytes.
const CLIENT_ID_MAX_BYTES: usize = 256;

/// The longest reason in an acknowledgement, in bytes.
const REASON_MAX_BYTES: usize = 200;

/// The smallest Maximum Packet Size of a client: an acknowledgement must fit.
const MIN_PACKET_BYTES: usize = 32;

/// The state of the protocol on one connection.
pub(super) struct Session {
    version: Version,
    is_connected: bool,
    max_packet_bytes: usize,
    receive_maximum: u16,
    /// The size of the largest packet that the client takes.
    max_answer_bytes: usize,
    /// Whether the client takes reasons in words (Request Problem Information).
    takes_reasons: bool,
    /// The number of unacknowledged messages.
    in_flight: u32,
    inbox: Inbox,
    /// The bytes to send.
    pub(super) out: Vec<u8>,
}

/// A version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// MQTT 3.1.1.
    V3,
    /// MQTT 5.
    V5,
}

/// An event that the bytes of the client cause.
#[derive(Debug)]
pub(super) enum Received {
    /// The client asks to connect, with its first packet.
    Connect(Connect),
    /// A message has arrived.
    Message(Message),
    /// The connection ends.
    Ended(Ended),
}

/// The content of CONNECT. A will is ignored.
#[derive(Debug, Default)]
pub(super) struct Connect {
    pub(super) client_id: String,
    pub(super) password: Option<Vec<u8>>,
    pub(super) keep_alive_seconds: u16,
    /// Whether a client of version 5 asks for a session that outlives the connection.
    ///
    /// CONNACK then says that there is none. In version 3.1.1 the field is false.
    wants_session: bool,
}

impl Session {
    pub(super) fn new(max_packet_bytes: usize, receive_maximum: u16) -> Self {
        Self {
            version: Version::V3,
            is_connected: false,
            max_packet_bytes,
            receive_maximum,
            max_answer_bytes: usize::MAX,
            takes_reasons: true,
            in_flight: 0,
            inbox: Inbox::default(),
            out: Vec::new(),
        }
    }

    /// The version that the client has chosen.
    pub(super) const fn version(&self) -> Version {
        self.version
    }

    /// The number of bytes of the incomplete packet.
    pub(super) const fn partial_bytes(&self) -> usize {
        self.inbox.len()
    }

    /// The number of bytes to the end of the incomplete packet, as far as its length is known.
    pub(super) fn lacking_bytes(&self) -> usize {
        self.inbox.lacking()
    }

    /// Whether the client is authenticated.
    pub(super) const fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Whether more than `receive_maximum` messages are unacknowledged.
    pub(super) fn is_window_exceeded(&self) -> bool {
        self.in_flight > self.receive_maximum.into()
    }

    /// Reads bytes of the client, and returns the events that they cause.
    ///
    /// Only the last event may be the end of the connection.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Vec<Received> {
        if !self.is_connected && self.inbox.len() == 0 && bytes.first().is_some_and(|first| *first != CONNECT) {
            return vec![Received::Ended(Ended::protocol("the first packet is no CONNECT"))];
        }
        let (mut inbox, mut received) = (std::mem::take(&mut self.inbox), Vec::new());
        let max_bytes = if self.is_connected { self.max_packet_bytes } else { MAX_CONNECT_BYTES };
        inbox.receive(bytes, max_bytes, |first, _, frame| {
            let taken = match frame {
                Frame::Incomplete => Ok(None),
                Frame::Whole { body, .. } => self.packet(first, body),
                Frame::TooLarge { .. } if !self.is_connected => Err(Ended::protocol("the first packet is no CONNECT")),
                Frame::TooLarge { topic, packet_id, flags, .. } => {
                    self.message(Message::too_large(topic, packet_id, flags))
                }
                Frame::Invalid(why) => Err(Ended::protocol(why)),
            };
            match taken {
                Ok(None) => true,
                Ok(Some(Received::Connect(connect))) => {
                    // The packets behind CONNECT wait until it is answered.
                    received.push(Received::Connect(connect));
                    false
                }
                Ok(Some(other)) => {
                    received.push(other);
                    true
                }
                Err(ended) => {
                    received.push(Received::Ended(ended));
                    false
                }
            }
        });
        self.inbox = inbox;
        received
    }

    fn packet(&mut self, first: u8, body: &[u8]) -> Result<Option<Received>, Ended> {
        let (kind, flags) = (first >> 4, first & 0x0f);
        let expected_flags = match kind {
            3 => flags,
            6 | 8 | 10 => 2,
            _ => 0,
        };
        if flags != expected_flags {
            return Err(Ended::protocol("a packet with reserved flags"));
        }
        match (kind, self.is_connected) {
            (1, false) => self.connect(body).map(|connect| Some(Received::Connect(connect))),
            (_, false) => Err(Ended::protocol("the first packet is no CONNECT")),
            (3, true) => self.publish(flags, body),
            (6, true) => self.pubrel(body).map(|()| None),
            (8, true) => self.subscribe(body).map(|()| None),
            (10, true) => self.unsubscribe(body).map(|()| None),
            (12, true) if body.is_empty() => {
                self.out.extend([0xd0, 0]);
                Ok(None)
            }
            (14, true) => Err(Ended::Client),
            _ => Err(Ended::protocol("a packet that no device sends at this point")),
        }
    }

    fn connect(&mut self, body: &[u8]) -> Result<Connect, Ended> {
        // A client with a later version than 5 gets an answer of version 5. The highest bit marks a bridge.
        if let [0, 4, b'M', b'Q', b'T', b'T', 5..0x80, ..] = body {
            self.version = Version::V5;
        }
        match body {
            [0, 4, b'M', b'Q', b'T', b'T', 4 | 5, flags, ..] if flags & 1 != 0 => {
                Err(Ended::protocol("a packet with reserved flags"))
            }
            [0, 4, b'M', b'Q', b'T', b'T', 4 | 5, flags, ..] if !are_will_flags_valid(*flags) => {
                Err(Ended::protocol("a will with quality of service 3, or flags of a will without a will"))
            }
            [0, 4, b'M', b'Q', b'T', b'T', version @ (4 | 5), flags, ..] if flags & 0xc0 == PASSWORD_FLAG => {
                if *version == 5 {
                    self.connect_without_user(body)
                } else {
                    Err(Ended::protocol("a password without a user name, which only MQTT 5 allows"))
                }
            }
            [0, 4, b'M', b'Q', b'T', b'T', 4, ..] => Self::connect_v3(&whole(v3_1_1::Connect::parse(body), body)?),
            [0, 4, b'M', b'Q', b'T', b'T', 5, ..] => self.connect_v5(&whole(v5_0::Connect::parse(body), body)?),
            [0, 4, b'M', b'Q', b'T', b'T', _, ..] | [0, 6, b'M', b'Q', b'I', b's', b'd', b'p', _, ..] => {
                Err(Ended::Refused(Refusal::Version))
            }
            _ => Err(Ended::protocol("the first packet is no CONNECT")),
        }
    }

    fn connect_v3(connect: &v3_1_1::Connect) -> Result<Connect, Ended> {
        if connect.client_id().is_empty() && !connect.clean_session() {
            return Err(Ended::Refused(Refusal::ClientId));
        }
        Connect::checked(connect.client_id(), connect.password(), connect.keep_alive(), false)
    }

    fn connect_v5(&mut self, connect: &v5_0::Connect) -> Result<Connect, Ended> {
        let mut wants_session = false;
        for property in connect.props() {
            match property {
                Property::MaximumPacketSize(size) => self.max_answer_bytes = size.val() as usize,
                Property::RequestProblemInformation(wanted) => self.takes_reasons = wanted.val() != 0,
                Property::SessionExpiryInterval(expiry) => wants_session = expiry.val() != 0,
                Property::AuthenticationMethod(_) => return Err(Ended::Refused(Refusal::Method)),
                _ => {}
            }
        }
        if self.max_answer_bytes < MIN_PACKET_BYTES {
            return Err(Ended::Refused(Refusal::PacketSize));
        }
        if connect.will_flag() && connect.will_qos() == Qos::ExactlyOnce {
            return Err(Ended::Refused(Refusal::WillQos));
        }
        Connect::checked(connect.client_id(), connect.password(), connect.keep_alive(), wants_session)
    }

    /// Reads a CONNECT with a password and no user name, which MQTT 5 allows and the parser does not.
    ///
    /// The parser reads it without the password, which is its last field.
    fn connect_without_user(&mut self, body: &[u8]) -> Result<Connect, Ended> {
        let mut without_password = body.to_vec();
        without_password[FLAGS_OFFSET] &= !PASSWORD_FLAG;
        let (connect, bytes) = v5_0::Connect::parse(&without_password).map_err(unreadable)?;
        let Some((length, password)) = body.get(bytes..).and_then(<[u8]>::split_first_chunk::<2>) else {
            return Err(Ended::protocol("a CONNECT that ends before its password"));
        };
        if password.len() != usize::from(u16::from_be_bytes(*length)) {
            return Err(Ended::protocol("a password of another length than CONNECT has bytes for it"));
        }
        let connect = self.connect_v5(&connect)?;
        Ok(Connect { password: Some(password.to_vec()), ..connect })
    }

    /// Accepts the connection. `assigned` is a client ID for a client without one.
    pub(super) fn accept(&mut self, connect: &Connect, assigned: Option<&str>) {
        self.is_connected = true;
        if self.version == Version::V3 {
            self.out.extend([0x20, 2, 0, 0]);
            return;
        }
        // CONNACK has no maximum packet size. With one, a bridge of mosquitto 2.0 would drop larger messages,
        // but count them as in flight forever: after `receive_maximum` of them it would send nothing more.
        let mut properties: Vec<Result<Property, PacketError>> =
            vec![MaximumQos::new(1).map(Property::from), ReceiveMaximum::new(self.receive_maximum).map(Property::from)];
        if connect.wants_session {
            properties.push(SessionExpiryInterval::new(0).map(Property::from));
        }
        if let Some(assigned) = assigned {
            properties.push(AssignedClientIdentifier::new(assigned).map(Property::from));
        }
        let properties: Result<Properties, _> = properties.into_iter().collect();
        let connack = v5_0::Connack::builder().session_present(false).reason_code(ConnectReasonCode::Success);
        self.send(properties.and_then(|properties| connack.props(properties).build()));
    }

    /// Acknowledges a message. In MQTT 5, `why` says why nothing of it is stored.
    pub(super) fn acknowledge(&mut self, receipt: MessageReceipt, outcome: Outcome, why: Option<&str>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let id = receipt.packet_id;
        let (Version::V5, Some(code)) = (self.version, outcome.reason_code()) else {
            let [high, low] = id.to_be_bytes();
            self.out.extend([0x40, 2, high, low]);
            return;
        };
        let reason = why.filter(|_| self.takes_reasons).and_then(reason);
        let puback = || v5_0::Puback::builder().packet_id(id).reason_code(code);
        self.send_either(reason.map(|reason| puback().props(vec![reason.into()]).build()), || puback().build());
    }

    /// Ends the connection: appends the last packet to `out`, if the version has one.
    ///
    /// MQTT 5 has a packet for most ends, and MQTT 3.1.1 only for a refused connection.
    pub(super) fn end(&mut self, why: &Ended) {
        match (self.version, why) {
            (Version::V3, _) if self.is_connected => {}
            (Version::V5, _) if self.is_connected => {
                if let Some(code) = why.disconnect_code() {
                    self.end_with(code, &why.to_string());
                }
            }
            (Version::V3, Ended::Refused(refusal)) => self.out.extend([0x20, 2, 0, refusal.return_code()]),
            (Version::V5, Ended::Refused(refusal)) => self.refuse(refusal.reason_code(), &refusal.to_string()),
            (Version::V5, Ended::Protocol(_)) => self.refuse(ConnectReasonCode::MalformedPacket, &why.to_string()),
            _ => {}
        }
    }

    fn end_with(&mut self, code: DisconnectReasonCode, why: &str) {
        let reason = reason(why).filter(|_| self.takes_reasons);
        let disconnect = || v5_0::Disconnect::builder().reason_code(code);
        self.send_either(reason.map(|reason| disconnect().props(vec![reason.into()]).build()), || disconnect().build());
    }

    fn refuse(&mut self, code: ConnectReasonCode, why: &str) {
        let connack = || v5_0::Connack::builder().session_present(false).reason_code(code);
        self.send_either(reason(why).map(|reason| connack().props(vec![reason.into()]).build()), || connack().build());
    }

    fn publish(&mut self, flags: u8, body: &[u8]) -> Result<Option<Received>, Ended> {
        if qos_bits(flags) == 0 && flags & 8 != 0 {
            return Err(Ended::protocol("a message of quality of service 0 that was sent before"));
        }
        let message = match self.version {
            Version::V5 => {
                let publish = whole(v5_0::Publish::parse(flags, Arc::from(body)), body)?;
                for property in publish.props() {
                    match property {
                        Property::TopicAlias(_) => return Err(Ended::TopicAlias),
                        Property::SubscriptionIdentifier(_) => {
                            return Err(Ended::protocol("a message of a client with a subscription ID"));
                        }
                        _ => {}
                    }
                }
                Message::from(&publish)
            }
            Version::V3 => Message::from(&whole(v3_1_1::Publish::parse(flags, Arc::from(body)), body)?),
        };
        self.message(message)
    }

    fn message(&mut self, mut message: Message) -> Result<Option<Received>, Ended> {
        // The flag asks the server to retain the message, which this server never does.
        message.is_retained = false;
        if message.topic.contains('\0') {
            return Err(Ended::protocol("a topic with U+0000"));
        }
        if message.topic.is_empty() || message.topic.contains(['+', '#']) {
            return Err(Ended::Topic);
        }
        let Some(receipt) = message.receipt else { return Ok(Some(Received::Message(message))) };
        if receipt.is_exactly_once {
            return Err(Ended::Qos);
        }
        check_id(receipt.packet_id)?;
        self.in_flight += 1;
        Ok(Some(Received::Message(message)))
    }

    /// Answers PUBREL, the second half of a message of quality of service 2.
    ///
    /// The client may have sent the first half to another server, in a session that it still has.
    fn pubrel(&mut self, body: &[u8]) -> Result<(), Ended> {
        let &[high, low, ..] = body else { return Err(Ended::protocol("a PUBREL without a packet ID")) };
        check_id(u16::from_be_bytes([high, low]))?;
        if self.version == Version::V3 {
            self.out.extend([0x70, 2, high, low]);
        } else {
            let code = PubcompReasonCode::PacketIdentifierNotFound;
            self.send(v5_0::Pubcomp::builder().packet_id(u16::from_be_bytes([high, low])).reason_code(code).build());
        }
        Ok(())
    }

    /// Refuses each subscription: devices only publish.
    fn subscribe(&mut self, body: &[u8]) -> Result<(), Ended> {
        if self.version == Version::V3 {
            let subscribe = whole(v3_1_1::Subscribe::parse(body), body)?;
            check_id(subscribe.packet_id())?;
            let codes = vec![SubackReturnCode::Failure; subscribe.entries().len()];
            self.send(v3_1_1::Suback::builder().packet_id(subscribe.packet_id()).return_codes(codes).build());
        } else {
            let subscribe = whole(v5_0::Subscribe::parse(body), body)?;
            check_id(subscribe.packet_id())?;
            let codes = vec![SubackReasonCode::NotAuthorized; subscribe.entries().len()];
            self.send(v5_0::Suback::builder().packet_id(subscribe.packet_id()).reason_codes(codes).build());
        }
        Ok(())
    }

    fn unsubscribe(&mut self, body: &[u8]) -> Result<(), Ended> {
        if self.version == Version::V3 {
            let unsubscribe = whole(v3_1_1::Unsubscribe::parse(body), body)?;
            check_id(unsubscribe.packet_id())?;
            self.send(v3_1_1::Unsuback::builder().packet_id(unsubscribe.packet_id()).build());
        } else {
            let unsubscribe = whole(v5_0::Unsubscribe::parse(body), body)?;
            check_id(unsubscribe.packet_id())?;
            let codes = vec![UnsubackReasonCode::NoSubscriptionExisted; unsubscribe.entries().len()];
            self.send(v5_0::Unsuback::builder().packet_id(unsubscribe.packet_id()).reason_codes(codes).build());
        }
        Ok(())
    }

    /// Sends `explained`, or `short` if that is larger than the client takes.
    fn send_either<P: GenericPacketTrait>(
        &mut self,
        explained: Option<Result<P, PacketError>>,
        short: impl FnOnce() -> Result<P, PacketError>,
    ) {
        match explained {
            Some(Ok(packet)) if packet.size() <= self.max_answer_bytes => {
                self.out.extend(packet.to_continuous_buffer());
            }
            _ => self.send(short()),
        }
    }

    /// Sends a packet, unless it is larger than the client takes.
    fn send(&mut self, packet: Result<impl GenericPacketTrait, PacketError>) {
        match packet {
            Ok(packet) if packet.size() <= self.max_answer_bytes => self.out.extend(packet.to_continuous_buffer()),
            Ok(_) => {}
            Err(error) => debug_assert!(false, "a packet of the server: {error:?}"),
        }
    }
}

impl Connect {
    fn checked(
        client_id: &str,
        password: Option<&[u8]>,
        keep_alive_seconds: u16,
        wants_session: bool,
    ) -> Result<Self, Ended> {
        if client_id.len() > CLIENT_ID_MAX_BYTES || client_id.chars().any(char::is_control) {
            return Err(Ended::Refused(Refusal::ClientId));
        }
        let password = password.map(<[u8]>::to_vec);
        Ok(Self { client_id: client_id.to_owned(), password, keep_alive_seconds, wants_session })
    }
}

/// Whether the standard allows the flags of a CONNECT about its will.
const fn are_will_flags_valid(flags: u8) -> bool {
    if flags & 4 == 0 { flags & 0x38 == 0 } else { flags & 0x18 != 0x18 }
}

fn check_id(packet_id: u16) -> Result<(), Ended> {
    if packet_id == 0 { Err(Ended::protocol("a packet ID of 0")) } else { Ok(()) }
}

/// Returns a parsed packet if it has the whole body.
fn whole<T>(parsed: Result<(T, usize), PacketError>, body: &[u8]) -> Result<T, Ended> {
    match parsed {
        Ok((packet, bytes)) if bytes == body.len() => Ok(packet),
        Ok(_) => Err(Ended::protocol("bytes behind the content of a packet")),
        Err(error) => Err(unreadable(error)),
    }
}

fn unreadable(error: PacketError) -> Ended {
    let error = match error {
        // A field of CONNECT is cut off, or is no text: the parser has not judged its content.
        PacketError::BadUserNameOrPassword | PacketError::ClientIdentifierNotValid => PacketError::MalformedPacket,
        other => other,
    };
    Ended::Protocol(format!("a packet that cannot be read: {error:?}"))
}

/// Makes a reason of at most `REASON_MAX_BYTES`.
fn reason(text: &str) -> Option<ReasonString> {
    let end = (0..=REASON_MAX_BYTES.min(text.len())).rev().find(|&end| text.is_char_boundary(end))?;
    ReasonString::new(&text[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: [u8; 6] = [0, 4, b'M', b'Q', b'T', b'T'];

    /// Makes a packet with a body of less than 128 bytes.
    fn packet(first: u8, body: &[u8]) -> Vec<u8> {
        [&[first, u8::try_from(body.len()).unwrap()][..], body].concat()
    }

    /// A CONNECT of version 5. `fields` are the properties and what follows them.
    fn connect_v5(flags: u8, fields: &[u8]) -> Vec<u8> {
        packet(CONNECT, &[&NAME[..], &[5, flags, 0, 60], fields].concat())
    }

    /// A bridge of mosquitto drops messages that are larger, and counts them as unacknowledged forever.
    #[test]
    fn a_client_is_not_told_the_size_of_the_largest_packet_and_larger_messages_are_answered() {
        let mut session = Session::new(64, 1);
        let received = session.receive(&connect_v5(2, &[0, 0, 1, b'd']));
        let [Received::Connect(connect)] = &received[..] else { panic!("{received:?}") };
        session.accept(connect, None);
        assert_eq!(session.out, [0x20, 8, 0, 0, 5, 0x24, 1, 0x21, 0, 1], "quality of service and receive maximum only");
        session.out.clear();
        let large = packet(0x32, &[&[0, 1, b't', 0, 7, 0][..], &[b'1'; 100]].concat());
        let received = [&large[..50], &large[50..]].map(|part| session.receive(part));
        let [first, rest] = &received;
        let ([Received::Message(message)], []) = (&first[..], &rest[..]) else { panic!("{received:?}") };
        assert!(message.payload.is_none() && session.partial_bytes() == 0, "it is skipped");
        session.acknowledge(message.receipt.unwrap(), Outcome::Invalid, None);
        assert_eq!(session.out, [0x40, 3, 0, 7, 0x99]);
    }

    #[test]
    fn a_client_that_may_no_longer_write_gets_no_second_connack() {
        let v3 = packet(CONNECT, &[&NAME[..], &[4, 2, 0, 60, 0, 1, b'd']].concat());
        for (bytes, first, code) in [(connect_v5(2, &[0, 0, 1, b'd']), Some(0xe0), Some(0x87)), (v3, None, None)] {
            let mut session = Session::new(64, 1);
            let received = session.receive(&bytes);
            let [Received::Connect(connect)] = &received[..] else { panic!("{received:?}") };
            session.accept(connect, None);
            session.out.clear();
            session.end(&Ended::Refused(Refusal::Forbidden));
            assert_eq!((session.out.first().copied(), session.out.get(2).copied()), (first, code));
        }
    }

    #[test]
    fn version_5_allows_a_password_without_a_user_name() {
        let password = [0, 3, b'k', b'e', b'y'];
        let no_will = [&[0, 0, 1, b'd'][..], &password].concat();
        // A session expiry, a user property, the client ID, and a will with a delay, a topic and a payload.
        let with_will = [
            &[12, 0x11, 0, 0, 0, 9, 0x26, 0, 1, b'k', 0, 1, b'v', 0, 1, b'd'][..],
            &[5, 0x18, 0, 0, 0, 1, 0, 1, b't', 0, 2, b'u', b'p'],
            &password,
        ]
        .concat();
        for (flags, fields) in [(0x42, &no_will), (0x4e, &with_will)] {
            let received = Session::new(64, 1).receive(&connect_v5(flags, fields));
            let [Received::Connect(connect)] = &received[..] else { panic!("{received:?}") };
            assert_eq!((connect.client_id.as_str(), connect.password.as_deref()), ("d", Some(&b"key"[..])));
            assert_eq!(connect.wants_session, flags == 0x4e);
            let (longer, shorter) = ([&fields[..], &[0]].concat(), &fields[..fields.len() - 1]);
            let cut = &fields[..=fields.len() - password.len()];
            for fields in [&longer[..], shorter, cut] {
                let received = Session::new(64, 1).receive(&connect_v5(flags, fields));
                assert!(matches!(received[..], [Received::Ended(Ended::Protocol(_))]), "{received:?}");
            }
        }
        let of_version_4 = packet(CONNECT, &[&NAME[..], &[4, 0x42, 0, 60, 0, 1, b'd'], &password].concat());
        let received = Session::new(64, 1).receive(&of_version_4);
        let [Received::Ended(ended)] = &received[..] else { panic!("{received:?}") };
        assert!(ended.to_string().contains("a password without a user name"), "{ended}");
    }

    /// Each CONNECT is well-formed but for the flags of its will.
    #[test]
    fn flags_of_a_will_that_the_standard_forbids_are_malformed() {
        let will = [0, 1, b't', 0, 0];
        for (flags, has_will) in [(0x1e, true), (0x0a, false), (0x22, false)] {
            let will: &[u8] = if has_will { &will } else { &[] };
            let properties_of_will: &[u8] = if has_will { &[0] } else { &[] };
            let v5 = connect_v5(flags, &[&[0, 0, 1, b'd'][..], properties_of_will, will].concat());
            let v3 = packet(CONNECT, &[&NAME[..], &[4, flags, 0, 60, 0, 1, b'd'], will].concat());
            for bytes in [v5, v3] {
                let received = Session::new(64, 1).receive(&bytes);
                let [Received::Ended(ended)] = &received[..] else { panic!("{received:?}") };
                assert!(ended.to_string().contains("will"), "{flags:#x}: {ended}");
            }
        }
    }

    #[test]
    fn a_connect_that_is_cut_off_is_malformed_and_no_wrong_password() {
        let whole = [0, 0, 1, b'd', 0, 1, b'u', 0, 3, b'k', b'e', b'y'];
        for bytes in 1..whole.len() {
            let received = Session::new(64, 1).receive(&connect_v5(0xc2, &whole[..bytes]));
            let [Received::Ended(ended)] = &received[..] else { panic!("{received:?}") };
            assert!(ended.to_string().ends_with("a packet that cannot be read: MalformedPacket"), "{bytes}: {ended}");
        }
    }
}
