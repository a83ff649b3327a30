//! The state of the protocol on one connection, without a socket: bytes in, events and bytes out.
//!
//! It finds the packets in the bytes itself, so that a message that is larger than allowed is skipped and
//! acknowledged: a broker would send it again after each closed connection. All other packets go to
//! `mqtt-protocol-core`, which knows versions 5 and 3.1.1.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mqtt_protocol_core::mqtt::common::{ArcPayload, Cursor};
use mqtt_protocol_core::mqtt::connection::{ConnectionOptions, Event, TimerKind};
use mqtt_protocol_core::mqtt::packet::{
    GenericPacketTrait, Packet, Properties, Property, Qos, ReceiveMaximum, RetainHandling, SessionExpiryInterval,
    SubEntry, SubOpts, v3_1_1, v5_0,
};
use mqtt_protocol_core::mqtt::result_code::{
    ConnectReasonCode, ConnectReturnCode, DisconnectReasonCode, MqttError as PacketError, PubackReasonCode,
};
use mqtt_protocol_core::mqtt::{Connection, Version, role};

use super::{MqttError, Options};

/// The time for the answer to a ping.
const PONG_TIMEOUT: Duration = Duration::from_secs(10);

/// The most filters in one packet: some brokers take no more.
const MAX_FILTERS: usize = 8;

/// The first bits of the packet of a message.
const PUBLISH: u8 = 0x30;

/// The state of the protocol on one connection.
pub(super) struct Session {
    version: Version,
    connection: Connection<role::Client>,
    max_packet_bytes: usize,
    /// Bytes that are not a whole packet yet.
    inbox: Vec<u8>,
    /// The bytes of a packet that is too large, still to come.
    to_skip: usize,
    /// The bytes to send.
    pub(super) out: Vec<u8>,
    ping_at: Option<Instant>,
    pong_by: Option<Instant>,
    /// The filters of each SUBSCRIBE without an answer, by packet ID.
    asked: HashMap<u16, Vec<String>>,
}

/// A packet of the broker that the client must know of.
#[derive(Debug)]
pub(super) enum Received {
    /// The broker accepts the connection.
    Connected {
        /// Whether it still has the session of this client.
        has_session: bool,
    },
    /// The broker's answers to subscriptions: each filter, with its quality of service or the refusal.
    Granted(Vec<(String, Result<u8, String>)>),
    /// A message.
    Message(Message),
    /// The connection ends.
    Ended(MqttError),
}

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) topic: Box<str>,
    /// `None`: the message was larger than allowed and skipped.
    pub(super) payload: Option<ArcPayload>,
    /// The acknowledgement that it needs.
    pub(super) receipt: Option<MessageReceipt>,
    /// Whether the broker sent it because it was retained, and not because it is new.
    pub(super) is_retained: bool,
    /// Whether the broker says that it has sent it before.
    pub(super) is_again: bool,
    /// Its size with all that is kept of it.
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
}

/// The acknowledgement that a message needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageReceipt {
    packet_id: u16,
    is_exactly_once: bool,
}

/// The outcome of a message, as version 5 can tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All is well.
    Done,
    /// The payload or the topic has no reading that can be stored.
    Invalid,
    /// A limit does not admit it now.
    OverQuota,
}

/// The memory of a message besides its bytes.
const MESSAGE_OVERHEAD_BYTES: usize = 256;

impl Session {
    /// Starts a connection: `out` has the first packet. A `clean` session is a new one, which ends with the
    /// connection.
    pub(super) fn open(options: &Options, client_id: &str, is_v5: bool, is_clean: bool) -> Result<Self, MqttError> {
        let version = if is_v5 { Version::V5_0 } else { Version::V3_1_1 };
        let mut connection = Connection::with_options(version, ConnectionOptions::new());
        connection.set_pingresp_recv_timeout(PONG_TIMEOUT.as_millis() as u64);
        let mut session = Self {
            version,
            connection,
            max_packet_bytes: options.max_packet_bytes,
            inbox: Vec::new(),
            to_skip: 0,
            out: Vec::new(),
            ping_at: None,
            pong_by: None,
            asked: HashMap::new(),
        };
        session.connect(options, client_id, is_clean).map_err(of_our_own)?;
        Ok(session)
    }

    fn connect(&mut self, options: &Options, client_id: &str, is_clean: bool) -> Result<(), PacketError> {
        let keep_alive = u16::try_from(options.keep_alive.as_secs()).unwrap_or(u16::MAX);
        let password = options.password.as_ref().map(|password| password.expose().as_bytes().to_vec());
        let mut with_maximum = None;
        let events = if self.version == Version::V5_0 {
            let connect = |properties: Properties| {
                let connect = v5_0::Connect::builder().client_id(client_id)?;
                let mut connect = connect.clean_start(is_clean).keep_alive(keep_alive).props(properties);
                if let Some(user) = &options.user {
                    connect = connect.user_name(user.as_str())?;
                }
                if let Some(password) = &password {
                    connect = connect.password(password.clone())?;
                }
                connect.build()
            };
            let expiry = u32::try_from(options.session_expiry.as_secs()).unwrap_or(u32::MAX);
            let expiry: Property = SessionExpiryInterval::new(if is_clean { 0 } else { expiry })?.into();
            // No maximum packet size: mosquitto 2.0 drops what is larger, but counts it as in flight for
            // ever, and sends nothing more once `receive_maximum` messages are.
            let on_the_wire = vec![expiry.clone(), ReceiveMaximum::new(options.receive_maximum)?.into()];
            // mosquitto 2.0 sends more than the maximum when it resumes a session. The state of the protocol
            // would end the connection for that each time, so only the packet on the wire has the maximum.
            with_maximum = Some(connect(on_the_wire)?.to_continuous_buffer());
            self.connection.checked_send(connect(vec![expiry])?)
        } else {
            let connect = v3_1_1::Connect::builder().client_id(client_id)?;
            let mut connect = connect.clean_session(is_clean).keep_alive(keep_alive);
            if let Some(user) = &options.user {
                connect = connect.user_name(user.as_str())?;
            }
            if let Some(password) = password {
                connect = connect.password(password)?;
            }
            self.connection.checked_send(connect.build()?)
        };
        self.handle(events, &mut Vec::new());
        if let Some(connect) = with_maximum {
            self.out = connect;
        }
        Ok(())
    }

    /// Subscribes to filters, each with its quality of service, and ends other subscriptions. Retained
    /// messages are not asked for.
    pub(super) fn subscribe(&mut self, wanted: &[(String, u8)], surplus: &[String]) -> Result<(), MqttError> {
        self.try_subscribe(wanted, surplus).map_err(of_our_own)
    }

    fn try_subscribe(&mut self, wanted: &[(String, u8)], surplus: &[String]) -> Result<(), PacketError> {
        for some in surplus.chunks(MAX_FILTERS) {
            let id = self.connection.acquire_packet_id()?;
            let events = if self.version == Version::V5_0 {
                self.connection
                    .checked_send(v5_0::Unsubscribe::builder().packet_id(id).entries(some.to_vec())?.build()?)
            } else {
                self.connection
                    .checked_send(v3_1_1::Unsubscribe::builder().packet_id(id).entries(some.to_vec())?.build()?)
            };
            self.handle(events, &mut Vec::new());
        }
        for some in wanted.chunks(MAX_FILTERS) {
            let id = self.connection.acquire_packet_id()?;
            self.asked.insert(id, some.iter().map(|(filter, _)| filter.clone()).collect());
            let is_v5 = self.version == Version::V5_0;
            let entry = |(filter, qos): &(String, u8)| {
                let qos = if *qos == 0 { Qos::AtMostOnce } else { Qos::AtLeastOnce };
                let options = SubOpts::new().set_qos(qos);
                let options = if is_v5 { options.set_rh(RetainHandling::DoNotSendRetained) } else { options };
                SubEntry::new(filter.as_str(), options)
            };
            let entries = some.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
            let events = if is_v5 {
                self.connection.checked_send(v5_0::Subscribe::builder().packet_id(id).entries(entries).build()?)
            } else {
                self.connection.checked_send(v3_1_1::Subscribe::builder().packet_id(id).entries(entries).build()?)
            };
            self.handle(events, &mut Vec::new());
        }
        Ok(())
    }

    /// Whether the broker has answered all subscriptions.
    pub(super) fn is_subscribed(&self) -> bool {
        self.asked.is_empty()
    }

    /// Acknowledges a message.
    pub(super) fn acknowledge(&mut self, receipt: MessageReceipt, outcome: Outcome) -> Result<(), MqttError> {
        self.try_acknowledge(receipt, outcome).map_err(of_our_own)
    }

    fn try_acknowledge(&mut self, receipt: MessageReceipt, outcome: Outcome) -> Result<(), PacketError> {
        let MessageReceipt { packet_id, is_exactly_once } = receipt;
        let reason = match outcome {
            Outcome::Done => None,
            Outcome::Invalid => Some(PubackReasonCode::PayloadFormatInvalid),
            Outcome::OverQuota => Some(PubackReasonCode::QuotaExceeded),
        };
        let events = match (self.version, is_exactly_once) {
            (Version::V5_0, false) => {
                let puback = v5_0::Puback::builder().packet_id(packet_id);
                let puback = if let Some(reason) = reason { puback.reason_code(reason) } else { puback };
                self.connection.checked_send(puback.build()?)
            }
            (Version::V5_0, true) => {
                self.connection.checked_send(v5_0::Pubrec::builder().packet_id(packet_id).build()?)
            }
            (_, false) => self.connection.checked_send(v3_1_1::Puback::builder().packet_id(packet_id).build()?),
            (_, true) => self.connection.checked_send(v3_1_1::Pubrec::builder().packet_id(packet_id).build()?),
        };
        self.handle(events, &mut Vec::new());
        Ok(())
    }

    /// Ends the connection in order: `out` has the last packet.
    pub(super) fn disconnect(&mut self) {
        let events = if self.version == Version::V5_0 {
            v5_0::Disconnect::builder().build().map(|packet| self.connection.checked_send(packet))
        } else {
            v3_1_1::Disconnect::builder().build().map(|packet| self.connection.checked_send(packet))
        };
        self.handle(events.unwrap_or_default(), &mut Vec::new());
    }

    /// The time of the next timer.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.ping_at.into_iter().chain(self.pong_by).min()
    }

    /// Notes that nothing is read at the moment, so that no answer to a ping can arrive.
    pub(super) fn pause(&mut self) {
        if let Some(pong_by) = &mut self.pong_by {
            *pong_by = Instant::now() + PONG_TIMEOUT;
        }
    }

    /// Sends a ping that is due, or finds that the answer to one is overdue.
    pub(super) fn fire_timers(&mut self) -> Result<(), MqttError> {
        let now = Instant::now();
        if self.pong_by.is_some_and(|at| at <= now) {
            return Err(MqttError::Timeout("a ping"));
        }
        if self.ping_at.is_some_and(|at| at <= now) {
            self.ping_at = None;
            let events = self.connection.notify_timer_fired(TimerKind::PingreqSend);
            self.handle(events, &mut Vec::new());
        }
        Ok(())
    }

    /// Takes bytes of the broker.
    pub(super) fn receive(&mut self, mut bytes: &[u8]) -> Vec<Received> {
        let mut received = Vec::new();
        let skipped = self.to_skip.min(bytes.len());
        self.to_skip -= skipped;
        bytes = &bytes[skipped..];
        let mut inbox = std::mem::take(&mut self.inbox);
        inbox.extend_from_slice(bytes);
        let mut at = 0;
        while !matches!(received.last(), Some(Received::Ended(_))) {
            let rest = &inbox[at..];
            match Frame::find(rest, self.max_packet_bytes) {
                Frame::Incomplete => break,
                Frame::Whole(bytes) => {
                    let events = self.connection.recv(&mut Cursor::new(&rest[..bytes]));
                    self.handle(events, &mut received);
                    at += bytes;
                }
                Frame::TooLarge { bytes, topic, packet_id, flags } => {
                    let is_exactly_once = qos_bits(flags) == 2;
                    received.push(Received::Message(Message {
                        topic: topic.into(),
                        payload: None,
                        receipt: packet_id.map(|packet_id| MessageReceipt { packet_id, is_exactly_once }),
                        is_retained: flags & 1 != 0,
                        is_again: flags & 8 != 0,
                        bytes: topic.len() + MESSAGE_OVERHEAD_BYTES,
                        arrived: Instant::now(),
                    }));
                    let here = bytes.min(rest.len());
                    self.to_skip = bytes - here;
                    at += here;
                }
                Frame::Invalid(why) => received.push(Received::Ended(MqttError::Protocol(why.to_owned()))),
            }
        }
        inbox.drain(..at);
        self.inbox = inbox;
        received
    }

    fn handle(&mut self, events: Vec<Event>, received: &mut Vec<Received>) {
        let mut ends = None;
        for event in events {
            match event {
                Event::RequestSendPacket { packet, .. } => self.out.extend_from_slice(&packet.to_continuous_buffer()),
                Event::NotifyPacketReceived(packet) => self.packet(packet, received),
                Event::RequestTimerReset { kind, duration_ms } => {
                    let at = Instant::now() + Duration::from_millis(duration_ms);
                    match kind {
                        TimerKind::PingreqSend => self.ping_at = Some(at),
                        TimerKind::PingrespRecv => self.pong_by = Some(at),
                        TimerKind::PingreqRecv => {}
                    }
                }
                Event::RequestTimerCancel(TimerKind::PingreqSend) => self.ping_at = None,
                Event::RequestTimerCancel(TimerKind::PingrespRecv) => self.pong_by = None,
                Event::RequestTimerCancel(TimerKind::PingreqRecv) | Event::NotifyPacketIdReleased(_) => {}
                Event::NotifyError(PacketError::UnsupportedProtocolVersion) => ends = Some(MqttError::Version),
                Event::NotifyError(error) => ends = Some(MqttError::Protocol(format!("{error:?}"))),
                Event::RequestClose => {
                    ends.get_or_insert_with(|| MqttError::Broker("ended the connection".to_owned()));
                }
            }
        }
        // The reason of a packet that ends the connection comes first.
        if let Some(error) = ends
            && !matches!(received.last(), Some(Received::Ended(_)))
        {
            received.push(Received::Ended(error));
        }
    }

    fn packet(&mut self, packet: Packet, received: &mut Vec<Received>) {
        match packet {
            Packet::V5_0Connack(connack) => received.push(match connack.reason_code() {
                ConnectReasonCode::Success => Received::Connected { has_session: connack.session_present() },
                ConnectReasonCode::UnsupportedProtocolVersion => Received::Ended(MqttError::Version),
                code => Received::Ended(MqttError::Broker(format!("refuses the connection: {code:?}"))),
            }),
            Packet::V3_1_1Connack(connack) => received.push(match connack.return_code() {
                ConnectReturnCode::Accepted => Received::Connected { has_session: connack.session_present() },
                code => Received::Ended(MqttError::Broker(format!("refuses the connection: {code:?}"))),
            }),
            Packet::V5_0Suback(suback) => {
                let codes = suback.reason_codes().into_iter().map(|code| match code as u8 {
                    qos @ 0..=2 => Ok(qos),
                    _ => Err(format!("{code:?}")),
                });
                self.granted(suback.packet_id(), codes, received);
            }
            Packet::V3_1_1Suback(suback) => {
                let codes = suback.return_codes().into_iter().map(|code| match code as u8 {
                    qos @ 0..=2 => Ok(qos),
                    _ => Err("the broker refuses the topic".to_owned()),
                });
                self.granted(suback.packet_id(), codes, received);
            }
            Packet::V5_0Publish(publish) => received.push(Received::Message(Message {
                topic: publish.topic_name().into(),
                bytes: publish.size() + MESSAGE_OVERHEAD_BYTES,
                receipt: receipt(publish.qos(), publish.packet_id()),
                is_retained: publish.retain(),
                is_again: publish.dup(),
                payload: Some(publish.payload().clone()),
                arrived: Instant::now(),
            })),
            Packet::V3_1_1Publish(publish) => received.push(Received::Message(Message {
                topic: publish.topic_name().into(),
                bytes: publish.size() + MESSAGE_OVERHEAD_BYTES,
                receipt: receipt(publish.qos(), publish.packet_id()),
                is_retained: publish.retain(),
                is_again: publish.dup(),
                payload: Some(publish.payload().clone()),
                arrived: Instant::now(),
            })),
            Packet::V5_0Pubrel(pubrel) => {
                let pubcomp = v5_0::Pubcomp::builder().packet_id(pubrel.packet_id()).build();
                let events = pubcomp.map(|packet| self.connection.checked_send(packet));
                self.handle(events.unwrap_or_default(), received);
            }
            Packet::V3_1_1Pubrel(pubrel) => {
                let pubcomp = v3_1_1::Pubcomp::builder().packet_id(pubrel.packet_id()).build();
                let events = pubcomp.map(|packet| self.connection.checked_send(packet));
                self.handle(events.unwrap_or_default(), received);
            }
            Packet::V5_0Disconnect(disconnect) => received.push(Received::Ended(match disconnect.reason_code() {
                Some(DisconnectReasonCode::SessionTakenOver) => MqttError::TakenOver,
                code => MqttError::Broker(format!("ended the connection: {code:?}")),
            })),
            _ => {}
        }
    }

    fn granted(
        &mut self,
        packet_id: u16,
        codes: impl Iterator<Item = Result<u8, String>>,
        received: &mut Vec<Received>,
    ) {
        let filters = self.asked.remove(&packet_id).unwrap_or_default();
        received.push(Received::Granted(filters.into_iter().zip(codes).collect()));
    }
}

fn receipt(qos: Qos, packet_id: Option<u16>) -> Option<MessageReceipt> {
    let is_exactly_once = qos == Qos::ExactlyOnce;
    packet_id.filter(|_| qos != Qos::AtMostOnce).map(|packet_id| MessageReceipt { packet_id, is_exactly_once })
}

/// An error about a packet of this client, whose parts the configuration has checked.
fn of_our_own(error: PacketError) -> MqttError {
    MqttError::Protocol(format!("a packet to the broker cannot be made: {error:?}"))
}

const fn qos_bits(flags: u8) -> u8 {
    flags >> 1 & 3
}

/// The packet at the start of some bytes.
#[derive(Debug, PartialEq, Eq)]
enum Frame<'b> {
    /// More bytes are needed.
    Incomplete,
    /// It has this many bytes.
    Whole(usize),
    /// A message that is too large, with its size.
    TooLarge { bytes: usize, topic: &'b str, packet_id: Option<u16>, flags: u8 },
    /// No packet begins so.
    Invalid(&'static str),
}

impl<'b> Frame<'b> {
    fn find(bytes: &'b [u8], max_bytes: usize) -> Self {
        let Some((&first, rest)) = bytes.split_first() else { return Self::Incomplete };
        let (mut length, mut head_bytes) = (0_usize, 1);
        loop {
            let place = head_bytes - 1;
            let Some(&byte) = rest.get(place) else {
                return if place < 4 { Self::Incomplete } else { Self::Invalid("a length of more than four bytes") };
            };
            if place == 4 {
                return Self::Invalid("a length of more than four bytes");
            }
            length |= usize::from(byte & 0x7f) << (7 * place);
            head_bytes += 1;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let total = head_bytes + length;
        if total <= max_bytes {
            return if bytes.len() < total { Self::Incomplete } else { Self::Whole(total) };
        }
        if first & 0xf0 != PUBLISH {
            return Self::Invalid("a packet that is larger than mqtt.max_packet_bytes, and no message");
        }
        Self::too_large(&bytes[head_bytes..], total, length, first & 0x0f)
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
        assert_eq!(Frame::find(&small, 1_000), Frame::Whole(small.len()));
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
}
