//! `[http]`: the HTTP server.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Deserializer, Serialize, de};

use super::check::{not_below, within};
use super::text::read_text;
use super::{Bytes, ConfigError, Period, Tls};

/// The longest DNS name, in characters.
const HOST_MAX_BYTES: usize = 253;

/// The HTTP server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// The address to listen on. Port 0 selects a free one.
    #[serde(deserialize_with = "socket_addr")]
    pub listen: SocketAddr,
    /// The host names of the server that requests may use. `*`: any name.
    ///
    /// IP addresses, the machine's own name, and names that cannot be registered in DNS, such as
    /// `gauge.local`, are always allowed.
    pub allowed_hosts: Vec<String>,
    /// The most connections that may be open at once. 1 to 1,000,000.
    pub max_connections: usize,
    /// The largest size of a request body, after decompression. 1B to 1GiB.
    pub max_body_bytes: Bytes,
    /// The memory for all request bodies that are not yet in the log.
    ///
    /// At least `max_body_bytes`.
    pub max_bytes_in_flight: Bytes,
    /// The time until the head of the next request has arrived. 1ms to 1h.
    ///
    /// It includes the idle time between two requests.
    pub header_timeout: Period,
    /// The time for a client's body, or without progress in reading an answer. 1ms to 1h.
    pub body_timeout: Period,
    /// `[http.tls]`: TLS and client certificates.
    pub tls: Tls,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            allowed_hosts: Vec::new(),
            max_connections: 10_000,
            max_body_bytes: Bytes::mib(16),
            max_bytes_in_flight: Bytes::mib(256),
            header_timeout: Period::secs(75),
            body_timeout: Period::secs(30),
            tls: Tls::default(),
        }
    }
}

impl Http {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let (body, in_flight) = (self.max_body_bytes, self.max_bytes_in_flight);
        within("http.max_connections", self.max_connections, 1, 1_000_000)?;
        within("http.max_body_bytes", body, Bytes(1), Bytes::gib(1))?;
        not_below("http.max_bytes_in_flight", in_flight, "http.max_body_bytes", body)?;
        within("http.header_timeout", self.header_timeout, Period::millis(1), Period::hours(1))?;
        within("http.body_timeout", self.body_timeout, Period::millis(1), Period::hours(1))?;
        self.check_allowed_hosts()?;
        self.tls.check()
    }

    fn check_allowed_hosts(&self) -> Result<(), ConfigError> {
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = |name: &str| (1..=HOST_MAX_BYTES).contains(&name.len()) && name.bytes().all(is_name_byte);
        match self.allowed_hosts.iter().find(|name| *name != "*" && !is_name(name)) {
            None => Ok(()),
            Some(name) => {
                let problem = format!("has {name:?}, must have names such as \"iot.example.com\", or \"*\"");
                Err(ConfigError::invalid("http.allowed_hosts", problem))
            }
        }
    }
}

fn socket_addr<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let expected = "an IP address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"";
    let text = read_text(deserializer, expected)?;
    text.parse().map_err(|_| de::Error::invalid_value(de::Unexpected::Str(&text), &expected))
}
