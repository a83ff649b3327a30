//! How readings arrive: by which transport and in which format.

use strum::{EnumIter, IntoEnumIterator, IntoStaticStr};

use super::{Code, Ignored};

/// The way by which readings arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// HTTP requests.
    Http,
    /// UDP datagrams.
    Udp,
    /// MQTT messages, from a broker or from a device.
    Mqtt,
}

/// An encoding of readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumIter)]
pub enum Format {
    /// JSON and NDJSON.
    Json,
    /// Influx line protocol.
    LineProtocol,
    /// `SenML` in JSON and in CBOR.
    Senml,
    /// Prometheus remote write 1.0 and 2.0.
    RemoteWrite,
    /// OTLP metrics in protobuf and in JSON.
    Otlp,
    /// JSON of another platform.
    Webhook,
}

/// The transport and the format of one request, datagram or message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// How the readings arrive.
    pub transport: Transport,
    /// How the readings are encoded.
    pub format: Format,
}

/// A value of the metric label `protocol`: a transport and its formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Protocol {
    /// JSON over HTTP.
    Http,
    /// Line protocol over HTTP.
    Influx,
    /// `SenML` over HTTP.
    Senml,
    /// Prometheus remote write.
    #[strum(serialize = "remote_write")]
    RemoteWrite,
    /// OTLP metrics over HTTP.
    Otlp,
    /// JSON of another platform over HTTP.
    Webhook,
    /// JSON or line protocol over UDP.
    Udp,
    /// JSON of any form, line protocol or `SenML` in MQTT messages.
    Mqtt,
}

impl Source {
    /// A format over HTTP.
    #[must_use]
    pub const fn http(format: Format) -> Self {
        Self { transport: Transport::Http, format }
    }

    /// A format over UDP.
    #[must_use]
    pub const fn udp(format: Format) -> Self {
        Self { transport: Transport::Udp, format }
    }

    /// A format in an MQTT message.
    #[must_use]
    pub const fn mqtt(format: Format) -> Self {
        Self { transport: Transport::Mqtt, format }
    }
}

impl From<Source> for Protocol {
    fn from(source: Source) -> Self {
        match (source.transport, source.format) {
            (Transport::Http, Format::Json) => Self::Http,
            (Transport::Http, Format::LineProtocol) => Self::Influx,
            (Transport::Http, Format::Senml) => Self::Senml,
            (Transport::Http, Format::RemoteWrite) => Self::RemoteWrite,
            (Transport::Http, Format::Otlp) => Self::Otlp,
            (Transport::Http, Format::Webhook) => Self::Webhook,
            (Transport::Udp, _) => Self::Udp,
            (Transport::Mqtt, _) => Self::Mqtt,
        }
    }
}

impl Protocol {
    /// The transport that the label stands for.
    #[must_use]
    pub const fn transport(self) -> Transport {
        match self {
            Self::Http | Self::Influx | Self::Senml | Self::RemoteWrite | Self::Otlp | Self::Webhook => Transport::Http,
            Self::Udp => Transport::Udp,
            Self::Mqtt => Transport::Mqtt,
        }
    }

    /// Whether readings with this label may have this format.
    fn carries(self, format: Format) -> bool {
        match self {
            Self::Udp => matches!(format, Format::Json | Format::LineProtocol),
            Self::Mqtt => matches!(format, Format::Json | Format::LineProtocol | Format::Senml | Format::Webhook),
            _ => self == Self::from(Source::http(format)),
        }
    }

    /// Whether bodies with this label may have this part.
    #[must_use]
    pub fn may_ignore(self, what: Ignored) -> bool {
        Format::iter().any(|format| self.carries(format) && what.occurs_in(format))
    }

    /// Whether readings with this label may be rejected with this code.
    #[must_use]
    pub fn may_reject(self, code: Code) -> bool {
        Format::iter().any(|format| self.carries(format) && code.occurs_in(format))
    }
}
