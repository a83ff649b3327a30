//! `[udp]`: the UDP sockets that receive readings.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Deserializer, Serialize, de};

use super::check::within;
use super::text::read_text;
use super::{Bytes, ConfigError};

/// The UDP sockets that receive readings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Udp {
    /// The address to listen on. Port 0 selects a free one.
    pub listen: Listen,
    /// The number of sockets that share the address. 1 to 64.
    ///
    /// Each socket has its own thread.
    pub sockets: usize,
    /// The memory for datagrams of one socket while the log is busy. 4KiB to 1GiB.
    ///
    /// It is used twice: for the buffer in the kernel, and for datagrams between the kernel and the log.
    pub receive_buffer: Bytes,
    /// The largest size of a datagram. 1B to 65535B.
    pub max_datagram_bytes: Bytes,
    /// The most devices whose last `seq` is remembered. 0 to 10,000,000.
    ///
    /// The server counts missing sequence numbers of these devices.
    pub max_sequences: usize,
}

/// The address to listen on, such as `"127.0.0.1:8089"`, or `"off"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// The server does not listen.
    Off,
    /// The server listens on this address.
    At(SocketAddr),
}

impl Default for Udp {
    fn default() -> Self {
        Self {
            listen: Listen::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 8089))),
            sockets: 2,
            receive_buffer: Bytes::mib(8),
            max_datagram_bytes: Bytes::kib(8),
            max_sequences: 100_000,
        }
    }
}

impl Udp {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("udp.sockets", self.sockets, 1, 64)?;
        within("udp.receive_buffer", self.receive_buffer, Bytes::kib(4), Bytes::gib(1))?;
        within("udp.max_datagram_bytes", self.max_datagram_bytes, Bytes(1), Bytes(65_535))?;
        within("udp.max_sequences", self.max_sequences, 0, 10_000_000)
    }
}

impl Listen {
    /// The address; `None` if the server does not listen.
    #[must_use]
    pub const fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "an IP address and a port, such as \"127.0.0.1:8089\" or \"[::1]:8089\", or \"off\"";
        let text = read_text(deserializer, expected)?;
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| de::Error::invalid_value(de::Unexpected::Str(&text), &expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_off_is_written_as_it_is_read() {
        for text in ["off", "127.0.0.1:8089", "[::1]:0"] {
            let written = format!("listen = \"{text}\"\n");
            let udp: Udp = toml::from_str(&written).expect("valid");
            assert!(toml::to_string(&udp).expect("TOML").starts_with(&written), "{udp:?}");
        }
        for text in ["on", "", "127.0.0.1", "localhost:8089"] {
            assert!(toml::from_str::<Udp>(&format!("listen = \"{text}\"")).is_err(), "{text}");
        }
    }
}
