//! The client's side of MQTT without a socket: bytes in, events and bytes out.
//!
//! The packets go to the client of `mqtt-protocol-core`, which knows versions 5 and 3.1.1.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mqtt_protocol_core::mqtt::common::Cursor;
use mqtt_protocol_core::mqtt::connection::{ConnectionOptions, Event, Sendable, TimerKind};
use mqtt_protocol_core::mqtt::packet::{
    GenericPacketTrait, Packet, Properties, Property, Qos, ReceiveMaximum, RetainHandling, SessionExpiryInterval,
    SubEntry, SubOpts, v3_1_1, v5_0,
};
use mqtt_protocol_core::mqtt::result_code::{
    ConnectReasonCode, ConnectReturnCode, DisconnectReasonCode, MqttError as PacketError,
};
use mqtt_protocol_core::mqtt::{Connection, Version, role};

use super::MqttError;
use super::frame::{Frame, Inbox};
use super::message::{Message, MessageReceipt, Outcome};
use crate::config;

/// The time for the answer to a ping.
pub(super) const PONG_TIMEOUT: Duration = Duration::from_secs(10);

/// The most filters in one packet: some brokers take no more.
const MAX_FILTERS: usize = 8;

/// The most characters of a text of the broker in an error.
const TEXT_MAX_CHARS: usize = 100;

/// The state of the protocol on one connection.
pub(super) struct Session {
    version: Version,
    connection: Connection<role::Client>,
    max_packet_bytes: usize,
    inbox: Inbox,
    /// The bytes to send.
    pub(super) out: Vec<u8>,
    ping_at: Option<Instant>,
    pong_by: Option<Instant>,
    /// The filters of each SUBSCRIBE without an answer, by packet ID.
    asked: HashMap<u16, Vec<String>>,
}

/// An event that the bytes of the broker cause.
#[derive(Debug)]
pub(super) enum Received {
    /// The broker accepts the connection.
    Connected {
        /// Whether the broker has kept the session of this client.
        has_session: bool,
        /// How long the broker keeps the session of the absent client. `None`: as long as it was asked to.
        session_expiry: Option<Duration>,
    },
    /// Answers to subscriptions: each filter with its quality of service or refusal.
    Granted(Vec<(String, Result<u8, String>)>),
    /// A message has arrived.
    Message(Message),
    /// The connection ends.
    Ended(MqttError),
}

impl Session {
    /// Starts a connection: `out` has the CONNECT.
    ///
    /// A clean session is a new one, which ends with the connection.
    pub(super) fn open(broker: &config::Mqtt, client_id: &str, is_v5: bool, is_clean: bool) -> Result<Self, MqttError> {
        let version = if is_v5 { Version::V5_0 } else { Version::V3_1_1 };
        let mut connection = Connection::with_options(version, ConnectionOptions::new());
        connection.set_pingresp_recv_timeout(PONG_TIMEOUT.as_millis() as u64);
        let mut session = Self {
            version,
            connection,
            max_packet_bytes: broker.max_packet_bytes.as_usize(),
            inbox: Inbox::default(),
            out: Vec::new(),
            ping_at: None,
            pong_by: None,
            asked: HashMap::new(),
        };
        session.connect(broker, client_id, is_clean)?;
        Ok(session)
    }

    fn connect(&mut self, broker: &config::Mqtt, client_id: &str, is_clean: bool) -> Result<(), MqttError> {
        let keep_alive = u16::try_from(broker.keep_alive.as_duration().as_secs()).unwrap_or(u16::MAX);
        let password = broker.password.as_ref().map(|password| password.expose().as_bytes().to_vec());
        if self.version == Version::V5_0 {
            let connect = |properties: Properties| {
                let connect = v5_0::Connect::builder().client_id(client_id)?;
                let mut connect = connect.clean_start(is_clean).keep_alive(keep_alive).props(properties);
                if let Some(user) = &broker.user {
                    connect = connect.user_name(user.as_str())?;
                }
                if let Some(password) = &password {
                    connect = connect.password(password.clone())?;
                }
                connect.build()
            };
            let expiry = u32::try_from(broker.session_expiry.as_duration().as_secs()).unwrap_or(u32::MAX);
            let expiry: Property = SessionExpiryInterval::new(if is_clean { 0 } else { expiry })?.into();
            // CONNECT has no maximum packet size. With one, mosquitto 2.0 would drop larger messages, but
            // count them as in flight forever: after `receive_maximum` of them it would send nothing more.
            let on_the_wire = vec![expiry.clone(), ReceiveMaximum::new(broker.receive_maximum)?.into()];
            // When mosquitto 2.0 resumes a session, it sends more than `receive_maximum` messages. If
            // `mqtt-protocol-core` knew the maximum, it would end the connection each time. So only the
            // packet on the wire has it.
            let on_the_wire = connect(on_the_wire)?.to_continuous_buffer();
            self.send(connect(vec![expiry])?);
            self.out = on_the_wire;
        } else {
            let connect = v3_1_1::Connect::builder().client_id(client_id)?;
            let mut connect = connect.clean_session(is_clean).keep_alive(keep_alive);
            if let Some(user) = &broker.user {
                connect = connect.user_name(user.as_str())?;
            }
            if let Some(password) = password {
                connect = connect.password(password)?;
            }
            self.send(connect.build()?);
        }
        Ok(())
    }

    /// Sends a packet, and sets the timers that it needs.
    fn send(&mut self, packet: impl Sendable<role::Client, u16>) {
        let events = self.connection.checked_send(packet);
        self.handle(events, &mut Vec::new());
    }

    /// Subscribes to the `wanted` filters, and ends the `surplus` subscriptions.
    ///
    /// Each wanted filter has its quality of service. With version 5, the client asks the broker not to send
    /// retained messages at the subscription.
    pub(super) fn subscribe(&mut self, wanted: &[(String, u8)], surplus: &[String]) -> Result<(), MqttError> {
        let is_v5 = self.version == Version::V5_0;
        for some in surplus.chunks(MAX_FILTERS) {
            let id = self.connection.acquire_packet_id()?;
            if is_v5 {
                self.send(v5_0::Unsubscribe::builder().packet_id(id).entries(some.to_vec())?.build()?);
            } else {
                self.send(v3_1_1::Unsubscribe::builder().packet_id(id).entries(some.to_vec())?.build()?);
            }
        }
        for some in wanted.chunks(MAX_FILTERS) {
            let id = self.connection.acquire_packet_id()?;
            self.asked.insert(id, some.iter().map(|(filter, _)| filter.clone()).collect());
            let entry = |(filter, qos): &(String, u8)| {
                let qos = if *qos == 0 { Qos::AtMostOnce } else { Qos::AtLeastOnce };
                let options = SubOpts::new().set_qos(qos);
                let options = if is_v5 { options.set_rh(RetainHandling::DoNotSendRetained) } else { options };
                SubEntry::new(filter.as_str(), options)
            };
            let entries = some.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
            if is_v5 {
                self.send(v5_0::Subscribe::builder().packet_id(id).entries(entries).build()?);
            } else {
                self.send(v3_1_1::Subscribe::builder().packet_id(id).entries(entries).build()?);
            }
        }
        Ok(())
    }

    /// Whether the broker has answered all subscriptions.
    pub(super) fn is_subscribed(&self) -> bool {
        self.asked.is_empty()
    }

    /// Acknowledges a message.
    pub(super) fn acknowledge(&mut self, receipt: MessageReceipt, outcome: Outcome) -> Result<(), MqttError> {
        let MessageReceipt { packet_id, is_exactly_once } = receipt;
        match (self.version, is_exactly_once) {
            (Version::V5_0, false) => {
                let puback = v5_0::Puback::builder().packet_id(packet_id);
                let puback = if let Some(code) = outcome.reason_code() { puback.reason_code(code) } else { puback };
                self.send(puback.build()?);
            }
            (Version::V5_0, true) => self.send(v5_0::Pubrec::builder().packet_id(packet_id).build()?),
            (_, false) => self.send(v3_1_1::Puback::builder().packet_id(packet_id).build()?),
            (_, true) => self.send(v3_1_1::Pubrec::builder().packet_id(packet_id).build()?),
        }
        Ok(())
    }

    /// Ends the connection: `out` has the DISCONNECT.
    pub(super) fn disconnect(&mut self) {
        let events = if self.version == Version::V5_0 {
            v5_0::Disconnect::builder().build().map(|packet| self.connection.checked_send(packet))
        } else {
            v3_1_1::Disconnect::builder().build().map(|packet| self.connection.checked_send(packet))
        };
        self.handle(events.unwrap_or_default(), &mut Vec::new());
    }

    /// When to call [`Self::fire_timers`].
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.ping_at.into_iter().chain(self.pong_by).min()
    }

    /// Extends the deadline of a ping's answer while the client does not read.
    pub(super) fn pause(&mut self) {
        if let Some(pong_by) = &mut self.pong_by {
            *pong_by = Instant::now() + PONG_TIMEOUT;
        }
    }

    /// Sends a ping that is due. Fails if the answer to the last ping is overdue.
    pub(super) fn fire_timers(&mut self) -> Result<(), MqttError> {
        let now = Instant::now();
        if self.pong_by.is_some_and(|at| at <= now) {
            return Err(MqttError::Timeout("answer a ping"));
        }
        if self.ping_at.is_some_and(|at| at <= now) {
            self.ping_at = None;
            let events = self.connection.notify_timer_fired(TimerKind::PingreqSend);
            self.handle(events, &mut Vec::new());
        }
        Ok(())
    }

    /// Reads bytes of the broker, and returns the events that they cause.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Vec<Received> {
        let (mut inbox, mut received) = (std::mem::take(&mut self.inbox), Vec::new());
        inbox.receive(bytes, self.max_packet_bytes, |_, packet, frame| {
            match frame {
                Frame::Incomplete => {}
                Frame::Whole { .. } => {
                    let events = self.connection.recv(&mut Cursor::new(packet));
                    self.handle(events, &mut received);
                }
                Frame::TooLarge { topic, packet_id, flags, .. } => {
                    received.push(Received::Message(Message::too_large(topic, packet_id, flags)));
                }
                Frame::Invalid(why) => received.push(Received::Ended(MqttError::Protocol(why.to_owned()))),
            }
            !matches!(received.last(), Some(Received::Ended(_)))
        });
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
                        // The library asks for this at each ping. The first ping without an answer counts.
                        TimerKind::PingrespRecv => {
                            self.pong_by.get_or_insert(at);
                        }
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
        // A packet that ends the connection has a better reason, so the reason of the packet stays.
        if let Some(error) = ends
            && !matches!(received.last(), Some(Received::Ended(_)))
        {
            received.push(Received::Ended(error));
        }
    }

    fn packet(&mut self, packet: Packet, received: &mut Vec<Received>) {
        match packet {
            Packet::V5_0Connack(connack) => received.push(match connack.reason_code() {
                ConnectReasonCode::Success => Received::Connected {
                    has_session: connack.session_present(),
                    session_expiry: connack.props().iter().find_map(|property| match property {
                        Property::SessionExpiryInterval(expiry) => Some(Duration::from_secs(expiry.val().into())),
                        _ => None,
                    }),
                },
                ConnectReasonCode::UnsupportedProtocolVersion => Received::Ended(MqttError::Version),
                code => {
                    let why = explained(&code, connack.props());
                    Received::Ended(MqttError::Broker(format!("refuses the connection: {why}")))
                }
            }),
            Packet::V3_1_1Connack(connack) => received.push(match connack.return_code() {
                ConnectReturnCode::Accepted => {
                    Received::Connected { has_session: connack.session_present(), session_expiry: None }
                }
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
            Packet::V5_0Publish(publish) => received.push(Received::Message(Message::from(&publish))),
            Packet::V3_1_1Publish(publish) => received.push(Received::Message(Message::from(&publish))),
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
            Packet::V5_0Disconnect(disconnect) => {
                let code = disconnect.reason_code().unwrap_or(DisconnectReasonCode::NormalDisconnection);
                let why = explained(&code, disconnect.props().as_deref().unwrap_or_default());
                received.push(Received::Ended(match code {
                    DisconnectReasonCode::SessionTakenOver => MqttError::TakenOver,
                    _ => MqttError::Broker(format!("ended the connection: {why}")),
                }));
            }
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

/// A reason code of the broker, with its reason in words and the server that it names.
///
/// Both texts are in quotes, and cut after `TEXT_MAX_CHARS`.
fn explained(code: &dyn std::fmt::Debug, properties: &[Property]) -> String {
    let mut explained = format!("{code:?}");
    for property in properties {
        let (what, text) = match property {
            Property::ReasonString(reason) => ("it says", reason.val()),
            Property::ServerReference(server) => ("it names the server", server.val()),
            _ => continue,
        };
        let shown: String = text.chars().take(TEXT_MAX_CHARS).collect();
        explained = format!("{explained}; {what} {shown:?}");
    }
    explained
}

/// The library cannot make a packet of this client from the checked configuration.
impl From<PacketError> for MqttError {
    fn from(error: PacketError) -> Self {
        Self::Protocol(format!("a packet to the broker cannot be made: {error:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a connection that a packet of the broker causes after the bytes `before`.
    fn end_by(before: &[u8], packet: &[u8]) -> String {
        let broker: config::Mqtt = toml::from_str("url = 'mqtt://broker'\nclient_id = 'c'").unwrap();
        let mut session = Session::open(&broker, "c", true, false).unwrap();
        session.receive(before);
        let received = session.receive(packet);
        let [Received::Ended(error)] = &received[..] else { panic!("{received:?}") };
        error.to_string()
    }

    #[test]
    fn the_reasons_of_a_broker_are_in_errors_in_quotes_and_cut() {
        let properties = [&[0x1f, 0, 6][..], b"moved\n", &[0x1c, 0, 2], b"b2"].concat();
        assert_eq!(
            end_by(&[], &[&[0x20, 17, 0, 0x9c, 14][..], &properties].concat()),
            "the broker refuses the connection: UseAnotherServer; it says \"moved\\n\"; it names the server \"b2\""
        );
        let connack = [0x20, 3, 0, 0, 0];
        let long = [&[0xe0, 0x83, 1, 0x8b, 0x80, 1, 0x1f, 0, 125][..], &[b'x'; 125]].concat();
        let shown = "x".repeat(TEXT_MAX_CHARS);
        assert_eq!(
            end_by(&connack, &long),
            format!("the broker ended the connection: ServerShuttingDown; it says \"{shown}\"")
        );
        assert_eq!(end_by(&connack, &[0xe0, 0]), "the broker ended the connection: NormalDisconnection");
    }
}
