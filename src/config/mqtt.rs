//! `[[mqtt]]`: the MQTT brokers from which the server receives readings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::check::{check_device_scope, within};
use super::path_list::{Condition, NamedPath, PathList};
use super::webhook::{DevicePlace, Preset, TimePlace, TimeUnit, Webhook};
use super::{Bytes, ConfigError, DEVICE_SEGMENT, Period, Secret, TopicTemplate};

/// The most topics of a broker, and the most templates of all its topics together.
const MAX_TOPICS: usize = 64;

/// The longest client ID, in bytes.
///
/// MQTT obliges brokers to accept 23 bytes; usual brokers accept more.
const CLIENT_ID_MAX_BYTES: usize = 64;

/// A broker, and the topics to subscribe to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mqtt {
    /// The URL of the broker, such as `mqtt://127.0.0.1:1883`, or `mqtts://` for TLS.
    pub url: BrokerUrl,
    /// The client ID of this server. The broker keeps a session for each client ID.
    pub client_id: String,
    /// The version of MQTT.
    #[serde(default)]
    pub version: MqttVersion,
    /// The user name at the broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The password of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// The PEM file of the certificate authorities of the broker.
    ///
    /// `None`: the authorities of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// The PEM file of this client's certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// The PEM file of the private key of this certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// How long the broker keeps the session of an absent client. 1s to 365d.
    #[serde(default = "seven_days")]
    pub session_expiry: Period,
    /// The most messages that may be unacknowledged at once. 1 to 65,535.
    #[serde(default = "a_thousand")]
    pub receive_maximum: u16,
    /// The largest size of a message with its topic. 1KiB to 16MiB.
    #[serde(default = "a_mebibyte")]
    pub max_packet_bytes: Bytes,
    /// The time without a packet after which this client pings the broker. 1s to 18h.
    #[serde(default = "half_a_minute")]
    pub keep_alive: Period,
    /// The tenant prefix, added to the device IDs in all messages of this broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_prefix: Option<String>,
    /// The topics to subscribe to, and the meaning of their messages.
    #[serde(default)]
    pub topics: Vec<MqttTopic>,
}

const fn seven_days() -> Period {
    Period::days(7)
}

const fn half_a_minute() -> Period {
    Period::secs(30)
}

const fn a_thousand() -> u16 {
    1_000
}

const fn a_mebibyte() -> Bytes {
    Bytes::mib(1)
}

/// The version of MQTT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MqttVersion {
    /// MQTT 5, or 3.1.1 if the broker refuses 5.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// MQTT 5.
    #[serde(rename = "5")]
    V5,
    /// MQTT 3.1.1.
    #[serde(rename = "3.1.1")]
    V3,
}

/// One or more topics, and the meaning of their payloads.
///
/// Unless `format` says otherwise, the keys from `device` on map JSON payloads to readings, as in
/// [`Webhook`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MqttTopic {
    /// The topics, as templates. `None`: the topics of the preset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<Templates>,
    /// The quality of service of the subscription: 0, 1, or 2, which counts as 1.
    ///
    /// `None`: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<u8>,
    /// The format of the payloads. `None`: see [`Self::mapping`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<PayloadFormat>,
    /// The platform whose preset sets the keys that are not set here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// The path of the device ID in the payload, unless the topic contains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DevicePlace>,
    /// A text that is put before each device ID, except replacements by `device_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_prefix: Option<String>,
    /// The place of the time in the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimePlace>,
    /// The unit of the time, if it is a number. `None`: milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_unit: Option<TimeUnit>,
    /// The paths of the metrics in the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<PathList<NamedPath>>,
    /// The keys that a path with `*` skips.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore: Option<Vec<String>>,
    /// The paths of labels, which all metrics of the payload get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<PathList<NamedPath>>,
    /// The paths of metadata of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<PathList<NamedPath>>,
    /// Metadata that every device gets, in addition to that of the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constants: Option<toml::Table>,
    /// Replacements of device IDs. The key is the ID in the topic or payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_ids: Option<BTreeMap<String, String>>,
    /// Conditions. A payload that meets none of them is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<PathList<Condition>>,
}

/// The format of payloads.
///
/// In all formats except [`Self::Mapped`], the payload itself can name its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PayloadFormat {
    /// JSON if the payload begins with a brace or a bracket, else line protocol.
    #[default]
    Auto,
    /// JSON or NDJSON.
    Json,
    /// Line protocol with times in nanoseconds.
    LineProtocol,
    /// `SenML` in JSON or CBOR.
    Senml,
    /// JSON of any form, or a plain number.
    ///
    /// The keys of [`MqttTopic`] map it to readings.
    Mapped,
}

/// A list of templates. A single template may be written without the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Templates(pub Vec<TopicTemplate>);

/// The address of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerUrl {
    text: String,
    /// Whether the connection uses TLS.
    pub is_tls: bool,
    /// The host name or IP address of the broker.
    pub host: String,
    /// The port. If the URL has none, it is 1883, or 8883 with TLS.
    pub port: u16,
}

impl Mqtt {
    /// Reads the password from its file, if it is in one.
    pub(super) fn read_secret(&mut self) -> Result<(), ConfigError> {
        self.password.as_mut().map_or(Ok(()), |password| password.read("mqtt.password"))
    }

    /// This broker, with the keys of presets filled into its topics.
    #[must_use]
    pub fn with_presets(&self) -> Self {
        Self { topics: self.topics.iter().map(MqttTopic::with_preset).collect(), ..self.clone() }
    }

    /// Checks each broker, and that no two of them share a client ID.
    pub(super) fn check_all(brokers: &[Self]) -> Result<(), ConfigError> {
        for (place, broker) in brokers.iter().enumerate() {
            let whose = format!("(mqtt {}, {})", place + 1, broker.url);
            if brokers[..place].iter().any(|other| other.client_id == broker.client_id) {
                let problem =
                    format!("is that of another table: metrics tell tables apart by it, give each its own {whose}");
                return Err(ConfigError::invalid("mqtt.client_id", problem));
            }
            broker.check(&whose)?;
        }
        Ok(())
    }

    fn check(&self, whose: &str) -> Result<(), ConfigError> {
        let wrong = |key, problem: String| Err(ConfigError::invalid(key, format!("{problem} {whose}")));
        let is_text = |text: &str, max| (1..=max).contains(&text.len()) && !text.chars().any(char::is_control);
        if !is_text(&self.client_id, CLIENT_ID_MAX_BYTES) {
            return wrong(
                "mqtt.client_id",
                format!("is not 1 to {CLIENT_ID_MAX_BYTES} bytes without control characters"),
            );
        }
        if self.user.as_deref().is_some_and(|user| !is_text(user, 1_024)) {
            return wrong("mqtt.user", "is not 1 to 1024 bytes without control characters".to_owned());
        }
        match &self.password {
            Some(_) if self.user.is_none() => {
                return wrong("mqtt.password", "is set, so mqtt.user must be set".to_owned());
            }
            // `***` is no password: a printed configuration has it in place of the password.
            Some(password) if !(1..=1_024).contains(&password.expose().len()) || password.expose() == "***" => {
                return wrong("mqtt.password", "is not 1 to 1024 bytes".to_owned());
            }
            _ => {}
        }
        within("mqtt.session_expiry", self.session_expiry, Period::secs(1), Period::days(365))?;
        within("mqtt.receive_maximum", self.receive_maximum, 1, u16::MAX)?;
        within("mqtt.max_packet_bytes", self.max_packet_bytes, Bytes::kib(1), Bytes::mib(16))?;
        within("mqtt.keep_alive", self.keep_alive, Period::secs(1), Period::hours(18))?;
        let files =
            [("mqtt.ca_file", &self.ca_file), ("mqtt.cert_file", &self.cert_file), ("mqtt.key_file", &self.key_file)];
        for (key, file) in files {
            match file.as_deref() {
                Some(file) if file == Path::new("") => return wrong(key, "is empty; remove it".to_owned()),
                Some(_) if !self.url.is_tls => {
                    return wrong(key, format!("is for mqtts://, and mqtt.url is {}", self.url));
                }
                _ => {}
            }
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return wrong("mqtt.key_file", "and mqtt.cert_file must both be set, or none of them".to_owned());
        }
        check_device_scope(["mqtt.client_id", "mqtt.device_prefix"], None, self.device_prefix.as_deref(), whose)?;
        check_topics(&self.topics).or_else(|(key, problem)| wrong(key, problem))
    }
}

/// Checks the topics of a broker, or of the listener for MQTT devices.
pub(super) fn check_topics(topics: &[MqttTopic]) -> Result<(), (&'static str, String)> {
    if topics.is_empty() || topics.len() > MAX_TOPICS {
        return Err(("mqtt.topics", format!("is a list of {}, must have 1 to {MAX_TOPICS} topics", topics.len())));
    }
    let mut known: Vec<TopicTemplate> = Vec::new();
    for topic in topics.iter().map(MqttTopic::with_preset) {
        topic.check()?;
        for template in topic.templates() {
            if let Some(other) = known.iter().find(|other| other.overlaps(template)) {
                let problem = format!("{template} has topics of {other} too: which of them counts is not clear");
                return Err(("mqtt.topics.topic", problem));
            }
            known.push(template.clone());
        }
    }
    if known.len() > MAX_TOPICS {
        return Err(("mqtt.topics", format!("has more than {MAX_TOPICS} templates")));
    }
    Ok(())
}

impl MqttTopic {
    /// These topics, with the keys of their preset filled in.
    #[must_use]
    pub fn with_preset(&self) -> Self {
        let Some(preset) = self.preset else { return self.clone() };
        let topic = self.topic.clone().or_else(|| Some(Templates(preset.topics())));
        let with = Self { topic, ..self.clone() };
        let Some(Webhook { device, device_prefix, time, time_unit, metrics, ignore, labels, metadata, when, .. }) =
            with.mapping()
        else {
            return with;
        };
        Self { device, device_prefix, time, time_unit, metrics, ignore, labels, metadata, when, ..with }
    }

    /// The templates of the topics.
    ///
    /// Empty if they are those of a preset that is not filled in.
    #[must_use]
    pub fn templates(&self) -> &[TopicTemplate] {
        self.topic.as_ref().map_or(&[], |topic| &topic.0)
    }

    /// Whether the topic contains the device ID: `{deviceId}`.
    #[must_use]
    pub fn has_device(&self) -> bool {
        self.templates().iter().any(TopicTemplate::has_device)
    }

    /// The mapping of payloads that are JSON of any form, as a [`Webhook`].
    ///
    /// `None`: the payloads have a format that names its parts itself, such as line protocol. Without
    /// `format`, there is a mapping if the topic has a preset, `metrics` or `{deviceId}`. If a mapping has
    /// neither `metrics` nor a preset, all numbers in the payload are metrics.
    #[must_use]
    pub fn mapping(&self) -> Option<Webhook> {
        let has_device = self.has_device();
        let is_mapped = match self.format {
            Some(format) => format == PayloadFormat::Mapped,
            None => self.preset.is_some() || self.metrics.is_some() || has_device,
        };
        if !is_mapped {
            return None;
        }
        let path = if has_device { format!("/mqtt/{DEVICE_SEGMENT}") } else { "/mqtt".to_owned() };
        let all = || PathList(vec![NamedPath { name: None, path: "*".parse().expect("a path") }]);
        let metrics = self.metrics.clone().or_else(|| self.preset.is_none().then(all));
        let mapping = Webhook {
            path: path.parse().expect("a path"),
            preset: self.preset,
            device: self.device.clone(),
            device_prefix: self.device_prefix.clone(),
            time: self.time.clone(),
            time_unit: self.time_unit,
            metrics,
            ignore: self.ignore.clone(),
            labels: self.labels.clone(),
            metadata: self.metadata.clone(),
            constants: self.constants.clone(),
            device_ids: self.device_ids.clone(),
            when: self.when.clone(),
            parameters: None,
        };
        Some(mapping.with_preset())
    }

    /// Checks these topics. The keys of their preset must be filled in.
    fn check(&self) -> Result<(), (&'static str, String)> {
        if let Some(qos) = self.qos.filter(|qos| *qos > 2) {
            return Err(("mqtt.topics.qos", format!("is {qos}, must be 0, 1 or 2")));
        }
        let templates = self.templates();
        if templates.is_empty() {
            return Err(("mqtt.topics.topic", "is missing, and so is a preset that has topics".to_owned()));
        }
        if templates.iter().any(|template| template.has_device() != templates[0].has_device()) {
            let problem = format!("must have {DEVICE_SEGMENT} in all templates of its list, or in none of them");
            return Err(("mqtt.topics.topic", problem));
        }
        let mapping = self.mapping();
        let is_device_named = self.has_device() || mapping.as_ref().is_some_and(|mapping| mapping.device.is_some());
        if !is_device_named && let Some(name) = self.similar_to_device() {
            return Err(("mqtt.topics.topic", format!("has the level {{{name}}}: did you mean {DEVICE_SEGMENT}?")));
        }
        let Some(mapping) = mapping else { return self.check_unmapped() };
        match mapping.device {
            Some(DevicePlace::Parameter(_)) => {
                return Err(("mqtt.topics.device", "is a parameter of a URL, and a topic has none".to_owned()));
            }
            Some(_) if self.has_device() => {
                return Err(("mqtt.topics.device", format!("is set, but the topic has {DEVICE_SEGMENT}")));
            }
            None if !self.has_device() => {
                let ways = format!("set its path in the payload, or put the level {DEVICE_SEGMENT} into the topic");
                return Err(("mqtt.topics.device", format!("is missing: {ways}")));
            }
            _ => {}
        }
        let checked = mapping.check();
        checked.map_err(|(key, problem)| (key_of_topic(key), problem.replace("webhook.", "mqtt.topics.")))?;
        for template in templates {
            let taken =
                template.names(true).find(|name| mapping.label_paths().iter().any(|path| path.name() == Some(name)));
            if let Some(name) = taken {
                return Err(("mqtt.topics.labels", format!("has the name {name:?}, which the topic has too")));
            }
            let mut names = template.names(false);
            let taken = names.find(|name| mapping.metadata_paths().iter().any(|path| path.name() == Some(name)));
            if let Some(name) = taken {
                return Err(("mqtt.topics.metadata", format!("has the name {name:?}, which the topic has too")));
            }
        }
        Ok(())
    }

    /// The name of a level that is metadata, but may be meant as `{deviceId}`: `deviceID`, `device`.
    fn similar_to_device(&self) -> Option<&str> {
        self.templates().iter().flat_map(|template| template.names(false)).find(|name| {
            let letters: String = name.chars().filter(char::is_ascii_alphabetic).collect();
            ["deviceid", "device", "id"].iter().any(|similar| letters.eq_ignore_ascii_case(similar))
        })
    }

    /// Checks topics without a mapping: the keys of a mapping must not be set.
    fn check_unmapped(&self) -> Result<(), (&'static str, String)> {
        let set = [
            ("mqtt.topics.preset", self.preset.is_some()),
            ("mqtt.topics.device", self.device.is_some()),
            ("mqtt.topics.device_prefix", self.device_prefix.is_some()),
            ("mqtt.topics.time", self.time.is_some()),
            ("mqtt.topics.time_unit", self.time_unit.is_some()),
            ("mqtt.topics.metrics", self.metrics.is_some()),
            ("mqtt.topics.ignore", self.ignore.is_some()),
            ("mqtt.topics.labels", self.labels.is_some()),
            ("mqtt.topics.metadata", self.metadata.is_some()),
            ("mqtt.topics.constants", self.constants.is_some()),
            ("mqtt.topics.device_ids", self.device_ids.is_some()),
            ("mqtt.topics.when", self.when.is_some()),
        ];
        if let Some((key, _)) = set.into_iter().find(|(_, is_set)| *is_set) {
            let why = if self.format.is_some() {
                "is set together with mqtt.topics.format: these payloads need no mapping"
            } else {
                "is set without mqtt.topics.metrics, a preset, or {deviceId} in the topic"
            };
            return Err((key, why.to_owned()));
        }
        match self.templates().iter().find(|template| template.has_more_than_device()) {
            Some(template) => {
                let problem = format!(
                    "{template} names more than {DEVICE_SEGMENT}, but the payloads name their metrics themselves: \
                     write {{_}}, or set mqtt.topics.metrics"
                );
                Err(("mqtt.topics.topic", problem))
            }
            None => Ok(()),
        }
    }
}

/// The key of `[[mqtt.topics]]` for a key of `[[webhook]]`, for errors.
fn key_of_topic(key: &str) -> &'static str {
    match key {
        "webhook.device" => "mqtt.topics.device",
        "webhook.device_prefix" => "mqtt.topics.device_prefix",
        "webhook.time" => "mqtt.topics.time",
        "webhook.ignore" => "mqtt.topics.ignore",
        "webhook.labels" => "mqtt.topics.labels",
        "webhook.metadata" => "mqtt.topics.metadata",
        "webhook.constants" => "mqtt.topics.constants",
        "webhook.device_ids" => "mqtt.topics.device_ids",
        "webhook.when" => "mqtt.topics.when",
        _ => "mqtt.topics.metrics",
    }
}

impl BrokerUrl {
    /// The URL as it is in the configuration.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for BrokerUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected mqtt:// or mqtts://, a host, and perhaps a port, as in \
                                mqtts://broker.example.com:8883; a user has a key of its own";
        let (is_tls, rest) = match (text.strip_prefix("mqtts://"), text.strip_prefix("mqtt://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(EXPECTED),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (rest, None),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_host = (1..=253).contains(&host.len())
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte));
        let port = port.map_or(Ok(if is_tls { 8_883 } else { 1_883 }), |port| port.parse().map_err(|_| EXPECTED))?;
        if !is_host || port == 0 {
            return Err(EXPECTED);
        }
        Ok(Self { text: text.to_owned(), is_tls, host: host.to_owned(), port })
    }
}

impl std::fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Templates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [one] => one.serialize(serializer),
            all => all.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Templates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => vec![toml::Value::String(text)],
            toml::Value::Array(texts) => texts,
            _ => Vec::new(),
        };
        let expected = || de::Error::custom("expected a topic, or a list of topics");
        if texts.is_empty() {
            return Err(expected());
        }
        let parse = |text: &toml::Value| text.as_str().ok_or_else(expected)?.parse().map_err(de::Error::custom);
        texts.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(keys: &str) -> Option<String> {
        let head = "url = 'mqtts://broker'\nclient_id = 'tidegauge'\n";
        match toml::from_str::<Mqtt>(&format!("{head}{keys}")) {
            Ok(mut broker) => {
                broker.read_secret().and_then(|()| Mqtt::check_all(&[broker])).err().map(|e| e.to_string())
            }
            Err(error) => Some(error.message().to_owned()),
        }
    }

    #[test]
    fn a_broker_url_has_a_host_and_a_default_port_and_no_secret() {
        for (text, is_tls, host, port) in [
            ("mqtt://broker", false, "broker", 1_883),
            ("mqtts://broker/", true, "broker", 8_883),
            ("mqtt://127.0.0.1:1884", false, "127.0.0.1", 1_884),
            ("mqtt://[::1]", false, "::1", 1_883),
            ("mqtts://[::1]:1", true, "::1", 1),
        ] {
            let url: BrokerUrl = text.parse().expect(text);
            assert_eq!((url.is_tls, url.host.as_str(), url.port, url.as_str()), (is_tls, host, port, text));
        }
        for text in
            ["broker", "tcp://broker", "mqtt://", "mqtt://ann:secret@broker", "mqtt://b:x", "mqtt://b/t", "mqtt://b:0"]
        {
            assert!(text.parse::<BrokerUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_mistake_is_refused_with_its_key() {
        for (keys, expected) in [
            ("", "mqtt.topics is a list of 0"),
            ("[[topics]]\ntopic = 'a/#'\nqos = 3", "mqtt.topics.qos is 3"),
            ("[[topics]]\nqos = 1", "mqtt.topics.topic is missing"),
            ("password = 'x'\n[[topics]]\ntopic = 'a'", "mqtt.password is set, so mqtt.user must be set"),
            ("cert_file = 'x'\n[[topics]]\ntopic = 'a'", "mqtt.key_file and mqtt.cert_file must both be set"),
            ("[[topics]]\ntopic = 'a/#'\n[[topics]]\ntopic = 'a/b'", "mqtt.topics.topic a/b has topics of a/# too"),
            ("[[topics]]\ntopic = 'a/{site}'", "mqtt.topics.topic a/{site} names more than"),
            ("[[topics]]\ntopic = 'a/#'\ntime = 'ts'", "mqtt.topics.time is set without mqtt.topics.metrics"),
            ("[[topics]]\ntopic = 'a/#'\nmetrics = '*'", "mqtt.topics.device is missing: set its path in the payload"),
            ("[[topics]]\ntopic = 'a/{deviceID}/{metric}'", "mqtt.topics.topic has the level {deviceID}: did you mean"),
            ("[[topics]]\ntopic = '{device}'\nmetrics = '*'", "mqtt.topics.topic has the level {device}: did you mean"),
            ("[[topics]]\ntopic = 'a/{deviceId}'\ndevice = 'd'", "mqtt.topics.device is set, but the topic has {dev"),
            (
                "[[topics]]\ntopic = 'a/{deviceId}'\ntime = 't[*].x'\nmetrics = 'b'",
                "mqtt.topics.time is t[*].x, but mqtt.topics.metrics has no [*]",
            ),
            ("[[topics]]\ntopic = 'a'\nmetrics = '*'\ndevice = '?d'", "mqtt.topics.device is a parameter"),
            ("[[topics]]\ntopic = '{deviceId}/{a}'\nmetadata = 'a'", "mqtt.topics.metadata has the name \"a\""),
            (
                "[[topics]]\ntopic = '{deviceId}'\ndevice_ids = { a = 'b ' }",
                "mqtt.topics.device_ids has \"b \": a device",
            ),
            ("[[topics]]\ntopic = '{deviceId}'\nconstants = { at = 2026-01-01 }", "mqtt.topics.constants has the key"),
            ("[[topics]]\ntopic = 'a'\nconstants = { hall = 2 }", "mqtt.topics.constants is set without"),
            ("[[topics]]\ntopic = '{deviceId}/{a}'\nformat = 'json'", "mqtt.topics.topic {deviceId}/{a} names more"),
        ] {
            let problem = problem(keys).unwrap_or_default();
            assert!(problem.starts_with(expected), "{keys}: {problem}");
        }
    }

    #[test]
    fn two_tables_have_two_client_ids_also_at_different_brokers() {
        let broker = |host: &str, client_id: &str| -> Mqtt {
            let keys = format!("url = 'mqtt://{host}'\nclient_id = '{client_id}'\n[[topics]]\ntopic = 'a'");
            toml::from_str(&keys).expect("TOML")
        };
        for host in ["one", "two"] {
            let error = Mqtt::check_all(&[broker("one", "gw"), broker(host, "gw")]).expect_err(host).to_string();
            assert!(error.starts_with("mqtt.client_id is that of another table"), "{error}");
            assert!(Mqtt::check_all(&[broker("one", "gw"), broker(host, "gw-2")]).is_ok());
        }
    }

    #[test]
    fn topics_and_presets_make_a_mapping_of_a_webhook() {
        for keys in [
            "[[topics]]\ntopic = 'readings/#'",
            "[[topics]]\ntopic = ['a/+', 'b']\nformat = 'senml'",
            "[[topics]]\ntopic = 'a/{deviceId}/#'\nformat = 'json'",
            "[[topics]]\ntopic = 'plant/{site}/{deviceId}/{metric}'",
            "[[topics]]\npreset = 'zigbee2mqtt'\n[[topics]]\npreset = 'tasmota'\n[[topics]]\npreset = 'shelly'\n\
             [[topics]]\npreset = 'chirpstack'\n[[topics]]\npreset = 'tts'\n[[topics]]\npreset = 'thingsboard'",
            "[[topics]]\npreset = 'zigbee2mqtt'\ntopic = 'home/{deviceId}'",
        ] {
            assert_eq!(problem(keys), None, "{keys}");
        }
        let topic: MqttTopic = toml::from_str("preset = 'tasmota'").expect("TOML");
        let topic = topic.with_preset();
        let filters: Vec<_> = topic.templates().iter().map(TopicTemplate::filter).collect();
        assert_eq!(filters, ["tele/+/SENSOR", "tele/+/STATE"]);
        assert_eq!(topic.mapping().expect("a mapping").metric_paths().len(), 1);
    }

    #[test]
    fn a_password_is_never_shown() {
        let keys = "url = 'mqtt://h'\nclient_id = 'c'\nuser = 'u'\npassword = 'hunter2'\n[[topics]]\ntopic = 'a'";
        let broker: Mqtt = toml::from_str(keys).expect("TOML");
        assert!(!format!("{broker:?}{}", toml::to_string(&broker).expect("TOML")).contains("hunter2"));
    }
}
