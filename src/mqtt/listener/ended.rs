//! Why a connection of a device ends, and the codes that tell the client.

use std::io;

use mqtt_protocol_core::mqtt::result_code::{ConnectReasonCode, ConnectReturnCode, DisconnectReasonCode};

use crate::access::AuthError;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// The client has sent DISCONNECT.
    #[error("the client disconnected")]
    Client,
    /// The client has closed the connection without DISCONNECT.
    #[error("the client closed the connection without DISCONNECT")]
    Closed,
    /// The network failed.
    #[error("{0}")]
    Network(#[from] io::Error),
    /// The client was silent for 1.5 times its keep-alive.
    #[error("the client was silent for 1.5 times its keep-alive")]
    KeepAlive,
    /// A packet was not complete in time, or the client did not read its answers.
    #[error("a packet was not complete within mqtt_listener.packet_timeout")]
    Timeout,
    /// Another connection has the same client ID.
    #[error("another connection of the same owner has the same client ID")]
    TakenOver,
    /// The server stops.
    #[error("the server stops")]
    Shutdown,
    /// The client sent bytes that are not MQTT, or a packet that is not allowed.
    #[error("the client sent something that is not MQTT: {0}")]
    Protocol(String),
    /// The topic of a message is empty or has wildcards.
    #[error("a message has a topic that is empty or has wildcards")]
    Topic,
    /// A message uses a topic alias.
    #[error("a message uses a topic alias, and the server offers none")]
    TopicAlias,
    /// A message has quality of service 2.
    #[error("a message has quality of service 2; the server takes 0 and 1")]
    Qos,
    /// The token or certificate is no longer valid.
    #[error("{0}")]
    Unauthorized(AuthError),
    /// The connection was refused.
    #[error("{0}")]
    Refused(Refusal),
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// The version of the protocol is neither 5 nor 3.1.1.
    #[error("the server speaks MQTT 5 and 3.1.1")]
    Version,
    /// The client ID is too long, has control characters, or is missing.
    #[error("the client ID has more than 256 bytes or a control character, or is empty without a clean session")]
    ClientId,
    /// The client wants to authenticate with AUTH packets.
    #[error("the server has no authentication method but the token as password")]
    Method,
    /// The client takes no packets of the size of an acknowledgement.
    #[error("the client takes packets of less than 32 bytes only (Maximum Packet Size)")]
    PacketSize,
    /// The will has quality of service 2.
    #[error("the will has quality of service 2; the server takes 0 and 1")]
    WillQos,
    /// The token or certificate is missing or invalid.
    #[error("{}", of_mqtt(*.0))]
    Unauthorized(AuthError),
    /// The token does not allow writing.
    #[error("the token lacks the scope \"ingest\"")]
    Forbidden,
    /// The token has reached its rate of requests, to which connections count.
    #[error("the token has reached its rate of requests (limits.token_requests_per_second)")]
    RateLimited,
}

/// The text of an error, with the words of MQTT: a token is a password.
fn of_mqtt(error: AuthError) -> String {
    match error {
        AuthError::NoToken => "a connection needs a token as its password".to_owned(),
        AuthError::NoTokenNorCertificate => {
            "a connection needs a token as its password, or a client certificate".to_owned()
        }
        other => other.to_string(),
    }
}

impl Ended {
    /// The codes of all ends, and of connections above the limit.
    pub(super) const CODES: [&'static str; 13] = [
        "client",
        "network",
        "keep_alive",
        "timeout",
        "taken_over",
        "shutdown",
        "protocol",
        "version",
        "qos",
        "unauthorized",
        "forbidden",
        "rate_limited",
        Self::LIMIT,
    ];

    /// The code of a connection above `mqtt_listener.max_connections`.
    pub(super) const LIMIT: &'static str = "limit";

    pub(super) fn protocol(why: &str) -> Self {
        Self::Protocol(why.to_owned())
    }

    /// The code in metrics and log lines.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Closed | Self::Network(_) => "network",
            Self::KeepAlive => "keep_alive",
            Self::Timeout => "timeout",
            Self::TakenOver => "taken_over",
            Self::Shutdown => "shutdown",
            Self::Protocol(_) | Self::Topic | Self::TopicAlias => "protocol",
            Self::Qos => "qos",
            Self::Unauthorized(_) => "unauthorized",
            Self::Refused(refusal) => match refusal {
                Refusal::Version => "version",
                Refusal::ClientId | Refusal::Method | Refusal::PacketSize => "protocol",
                Refusal::WillQos => "qos",
                Refusal::Unauthorized(_) => "unauthorized",
                Refusal::Forbidden => "forbidden",
                Refusal::RateLimited => "rate_limited",
            },
        }
    }

    /// Whether a log line tells operators about the end.
    pub(super) const fn is_logged(&self) -> bool {
        !matches!(self, Self::Client | Self::Closed | Self::Network(_) | Self::Shutdown | Self::KeepAlive)
    }

    /// The reason of DISCONNECT, after a CONNACK that accepted; `None` if the client has left.
    pub(super) const fn disconnect_code(&self) -> Option<DisconnectReasonCode> {
        match self {
            Self::Client | Self::Closed | Self::Network(_) => None,
            Self::KeepAlive => Some(DisconnectReasonCode::KeepAliveTimeout),
            Self::Timeout => Some(DisconnectReasonCode::ProtocolError),
            Self::TakenOver => Some(DisconnectReasonCode::SessionTakenOver),
            Self::Shutdown => Some(DisconnectReasonCode::ServerShuttingDown),
            Self::Protocol(_) => Some(DisconnectReasonCode::MalformedPacket),
            Self::Topic => Some(DisconnectReasonCode::TopicNameInvalid),
            Self::TopicAlias => Some(DisconnectReasonCode::TopicAliasInvalid),
            Self::Qos => Some(DisconnectReasonCode::QosNotSupported),
            Self::Unauthorized(_) | Self::Refused(_) => Some(DisconnectReasonCode::NotAuthorized),
        }
    }
}

impl Refusal {
    /// The reason of CONNACK in version 5.
    pub(super) const fn reason_code(self) -> ConnectReasonCode {
        match self {
            Self::Version => ConnectReasonCode::UnsupportedProtocolVersion,
            Self::ClientId => ConnectReasonCode::ClientIdentifierNotValid,
            Self::Method => ConnectReasonCode::BadAuthenticationMethod,
            Self::PacketSize => ConnectReasonCode::ImplementationSpecificError,
            Self::WillQos => ConnectReasonCode::QosNotSupported,
            Self::Unauthorized(AuthError::UnknownToken) => ConnectReasonCode::BadUserNameOrPassword,
            Self::Unauthorized(_) | Self::Forbidden => ConnectReasonCode::NotAuthorized,
            Self::RateLimited => ConnectReasonCode::QuotaExceeded,
        }
    }

    /// The code of CONNACK in version 3.1.1.
    pub(super) const fn return_code(self) -> u8 {
        let code = match self {
            Self::Version => ConnectReturnCode::UnacceptableProtocolVersion,
            Self::ClientId => ConnectReturnCode::IdentifierRejected,
            Self::RateLimited => ConnectReturnCode::ServerUnavailable,
            Self::Unauthorized(AuthError::UnknownToken) => ConnectReturnCode::BadUserNameOrPassword,
            Self::Method | Self::PacketSize | Self::WillQos | Self::Unauthorized(_) | Self::Forbidden => {
                ConnectReturnCode::NotAuthorized
            }
        };
        code as u8
    }
}
