//! Invariants fuzzed on messages: the packet, the topic and the payload.

use std::sync::LazyLock;

use mqtt_protocol_core::mqtt::common::ArcPayload;

use super::payload::place;
use super::session::{Received, Session};
use super::{Connector, Formats, Options, Topic, listener};
use crate::access::DeviceScope;
use crate::config::{LineProtocol, Mqtt, Senml};
use crate::wire::senml::NameSplit;
use crate::wire::{fuzz::ParsedBody, json};

/// A broker with topics of each kind.
const BROKER: &str = "
url = 'mqtt://broker'
client_id = 'fuzz'
session_expiry = '1s'
receive_maximum = 10
max_packet_bytes = '4KiB'
[[topics]]
preset = 'zigbee2mqtt'
[[topics]]
preset = 'shelly'
[[topics]]
topic = 'p/{site}/{deviceId}/{label.phase}/{metric}'
time = 'ts'
[[topics]]
topic = 'senml/#'
format = 'senml'
[[topics]]
topic = 'own/#'
";

static OPTIONS: LazyLock<Options> = LazyLock::new(|| {
    let broker: Mqtt = toml::from_str(BROKER).expect("a broker");
    Options {
        connector: Connector::new(&broker).expect("no files"),
        scope: DeviceScope::all().clone(),
        topics: broker.topics.iter().flat_map(Topic::all).collect(),
        formats: Formats {
            line_protocol: LineProtocol::default(),
            json: json::Options::default(),
            senml_names: NameSplit::at(Senml::default().separators.as_str()),
        },
        subscriptions_file: "/nowhere".into(),
        broker,
    }
});

/// Reads the bytes of a broker after CONNACK. The first byte chooses the version.
pub fn mqtt(bytes: &[u8]) {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let is_v5 = first & 1 == 1;
    let mut session = Session::open(&OPTIONS.broker, "fuzz", is_v5, false).expect("a first packet");
    let connack: &[u8] = if is_v5 { &[0x20, 3, 0, 0, 0] } else { &[0x20, 2, 0, 0] };
    assert!(matches!(session.receive(connack)[..], [Received::Connected { has_session: false, session_expiry: None }]));
    let half = bytes.len() / 2;
    for part in [&bytes[..half], &bytes[half..]] {
        for received in session.receive(part) {
            let Received::Message(message) = received else { continue };
            assert!(message.topic.len() <= bytes.len());
            parse(&message.topic, message.payload.as_ref());
        }
    }
}

/// Reads the bytes of a device that connects to the server.
pub fn mqtt_device(bytes: &[u8]) {
    listener::fuzz::device(bytes, |message| parse(&message.topic, message.payload.as_ref()));
}

/// Parses the payload of a message.
fn parse(topic: &str, payload: Option<&ArcPayload>) {
    let (Some(payload), Ok(place)) = (payload, place(&OPTIONS.topics, topic)) else { return };
    let mut found = ParsedBody::default();
    place.parse(payload.as_slice(), &OPTIONS.formats, (1_776_693_610_000, 1_000), &mut found);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_in_the_corpus_is_one() {
        let topic = "own/x";
        let payload = br#"{"deviceId":"S1","value":1}"#;
        let mut packet = vec![0x30, (2 + topic.len() + 1 + payload.len()) as u8, 0, topic.len() as u8];
        packet.extend(topic.bytes());
        packet.push(0);
        packet.extend(payload);
        let mut session = Session::open(&OPTIONS.broker, "fuzz", true, false).unwrap();
        session.receive(&[0x20, 3, 0, 0, 0]);
        let received = session.receive(&packet);
        assert!(matches!(&received[..], [Received::Message(message)] if &*message.topic == topic), "{received:?}");
        packet.insert(0, 1);
        mqtt(&packet);
    }
}
