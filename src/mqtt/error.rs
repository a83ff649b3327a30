//! Why a connection to a broker ends.

use std::io;

/// Why a connection to a broker ended, or could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MqttError {
    /// The system cannot connect, read or write; or the handshake of TLS failed.
    #[error("{0}")]
    Network(#[from] io::Error),
    /// The broker did not do this in time: answer, or read.
    #[error("the broker did not {0} in time")]
    Timeout(&'static str),
    /// The broker refused the connection, or ended it.
    #[error("the broker {0}")]
    Broker(String),
    /// The broker refuses this version of the protocol.
    #[error("the broker refuses this version of MQTT")]
    Version,
    /// Another client with the same client ID has connected.
    #[error(
        "another client has connected with the same client ID and taken the session: each needs its own mqtt.client_id"
    )]
    TakenOver,
    /// The broker sent bytes that are not MQTT.
    #[error("the broker sent something that is not MQTT: {0}")]
    Protocol(String),
}

impl MqttError {
    /// The codes of all errors.
    pub const CODES: [&'static str; 5] = ["network", "timeout", "broker", "taken_over", "protocol"];

    /// The code in metrics and log lines.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Network(_) => "network",
            Self::Timeout(_) => "timeout",
            Self::Broker(_) | Self::Version => "broker",
            Self::TakenOver => "taken_over",
            Self::Protocol(_) => "protocol",
        }
    }

    /// Whether the cause may be that the broker does not know MQTT 5.
    pub(super) const fn may_be_of_version(&self) -> bool {
        matches!(self, Self::Version | Self::Protocol(_))
    }
}
