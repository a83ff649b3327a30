//! `[mqtt_listener]`: the server to which MQTT devices publish without a broker.

use serde::{Deserialize, Serialize};

use super::check::within;
use super::mqtt::check_topics;
use super::{Bytes, ConfigError, Listen, MqttTopic, Period};

/// The server to which MQTT devices publish without a broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MqttListener {
    /// The address to listen on, or `off`. Port 0 selects a free one.
    pub listen: Listen,
    /// The most connections that may be open at once. 1 to 1,000,000.
    pub max_connections: usize,
    /// The largest size of a message with its topic. 1KiB to 16MiB.
    pub max_packet_bytes: Bytes,
    /// The most unacknowledged messages of one connection. 1 to 65,535.
    pub receive_maximum: u16,
    /// The time for a client to send its first packet. 1ms to 1h.
    ///
    /// It is also the time to complete each packet that the client begins.
    pub packet_timeout: Period,
    /// The topics to which devices publish, and the meaning of their messages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<MqttTopic>,
}

impl Default for MqttListener {
    fn default() -> Self {
        Self {
            listen: Listen::Off,
            max_connections: 10_000,
            max_packet_bytes: Bytes::kib(256),
            receive_maximum: 100,
            packet_timeout: Period::secs(30),
            topics: Vec::new(),
        }
    }
}

impl MqttListener {
    /// This section, with the keys of presets filled into its topics.
    #[must_use]
    pub fn with_presets(&self) -> Self {
        Self { topics: self.topics.iter().map(MqttTopic::with_preset).collect(), ..self.clone() }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("mqtt_listener.max_connections", self.max_connections, 1, 1_000_000)?;
        within("mqtt_listener.max_packet_bytes", self.max_packet_bytes, Bytes::kib(1), Bytes::mib(16))?;
        within("mqtt_listener.receive_maximum", self.receive_maximum, 1, u16::MAX)?;
        within("mqtt_listener.packet_timeout", self.packet_timeout, Period::millis(1), Period::hours(1))?;
        if self.listen == Listen::Off && self.topics.is_empty() {
            return Ok(());
        }
        check_topics(&self.topics).map_err(|(key, problem)| {
            let problem = problem.replace("mqtt.topics", "mqtt_listener.topics");
            ConfigError::invalid(key.replacen("mqtt.", "mqtt_listener.", 1), problem)
        })?;
        if self.topics.iter().any(|topic| topic.qos.is_some()) {
            let problem = "is for subscriptions: a device chooses the quality of service of each message; remove it";
            return Err(ConfigError::invalid("mqtt_listener.topics.qos", problem));
        }
        let templates = self.topics.iter().flat_map(MqttTopic::templates);
        match templates.into_iter().find(|template| template.is_shared()) {
            Some(template) => {
                let problem = format!("{template} is a shared subscription, and devices publish without one");
                Err(ConfigError::invalid("mqtt_listener.topics.topic", problem))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(keys: &str) -> Option<String> {
        let section: MqttListener = toml::from_str(keys).expect("TOML");
        section.check().err().map(|error| error.to_string())
    }

    #[test]
    fn each_mistake_is_refused_with_its_key() {
        assert_eq!(problem(""), None);
        assert_eq!(problem("listen = '127.0.0.1:1883'\n[[topics]]\npreset = 'tasmota'"), None);
        for (keys, expected) in [
            ("listen = '127.0.0.1:1883'", "mqtt_listener.topics is a list of 0"),
            ("[[topics]]\ntopic = 'a'\nqos = 1", "mqtt_listener.topics.qos is for subscriptions"),
            ("[[topics]]\ntopic = '$share/g/a'", "mqtt_listener.topics.topic $share/g/a is a shared"),
            ("[[topics]]\ntopic = 'a/#'\n[[topics]]\ntopic = 'a/b'", "mqtt_listener.topics.topic a/b has topics of"),
            (
                "[[topics]]\ntopic = 'a/#'\ntime = 'ts'",
                "mqtt_listener.topics.time is set without mqtt_listener.topics.metrics",
            ),
            ("[[topics]]\ntopic = 'a/#'\nconstants = { a = 1 }", "mqtt_listener.topics.constants is set"),
            ("max_packet_bytes = '1B'", "mqtt_listener.max_packet_bytes is 1B"),
        ] {
            let problem = problem(keys).unwrap_or_default();
            assert!(problem.starts_with(expected), "{keys}: {problem}");
        }
    }
}
