//! The sockets of the server, which it binds itself or gets from another process.
//!
//! Another process passes its sockets by socket activation, the protocol of `sd_listen_fds(3)`. That process,
//! mostly systemd with a socket unit, keeps the sockets open while the server restarts. Connections and
//! datagrams that arrive meanwhile wait in the kernel for the next server, and none is refused. The
//! environment names the sockets: `LISTEN_PID` is the process that they are for, `LISTEN_FDS` their number.
//! The first one is descriptor 3.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use anyhow::{Context, bail};
use nix::sys::socket::{AddressFamily, SockType, SockaddrLike, SockaddrStorage, getsockname, getsockopt, sockopt};
use tidegauge::config::Config;
use tidegauge::{http, mqtt, udp};

use super::options;

/// The first passed descriptor.
const FIRST: RawFd = 3;

/// The most sockets that another process may pass: one for HTTP and 64 for UDP.
const MAX: RawFd = 1 + 64;

/// The sockets that were passed to this process.
#[derive(Debug, Default)]
pub(super) struct PassedSockets {
    /// The socket for HTTP, which listens.
    http: Option<TcpListener>,
    /// The sockets for datagrams, all of one address.
    udp: Vec<UdpSocket>,
}

/// The sockets that the server uses.
#[derive(Debug)]
pub(super) struct BoundSockets {
    pub(super) http: tokio::net::TcpListener,
    pub(super) udp: Option<udp::Sockets>,
    pub(super) mqtt: Option<mqtt::Listener>,
}

impl PassedSockets {
    /// Takes the sockets of the environment.
    ///
    /// A process does this once, before it uses descriptors of its own.
    pub(super) fn take() -> anyhow::Result<Self> {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let is_for_this = variable("LISTEN_PID").parse() == Ok(std::process::id());
        if !is_for_this {
            return Ok(Self::default());
        }
        let text = variable("LISTEN_FDS");
        let count = text.parse().ok().filter(|count| (0..=MAX).contains(count));
        let count = count.with_context(|| format!("LISTEN_FDS is {text:?}, expected a number from 0 to {MAX}"))?;
        let mut passed = Self::default();
        for descriptor in FIRST..FIRST + count {
            passed
                .add(descriptor)
                .with_context(|| format!("the passed descriptor {descriptor} (LISTEN_FDS={count})"))?;
        }
        Ok(passed)
    }

    /// The address of the passed socket for HTTP.
    pub(super) fn http_addr(&self) -> std::io::Result<Option<SocketAddr>> {
        self.http.as_ref().map(TcpListener::local_addr).transpose()
    }

    /// The address of the passed sockets for datagrams.
    pub(super) fn udp_addr(&self) -> std::io::Result<Option<SocketAddr>> {
        self.udp.first().map(UdpSocket::local_addr).transpose()
    }

    /// The sockets for HTTP, for datagrams and for MQTT devices.
    ///
    /// Sockets that were not passed are bound to the addresses of the configuration. The socket for MQTT is
    /// never passed.
    pub(super) fn or_bound(self, config: &Config) -> anyhow::Result<BoundSockets> {
        let (http, udp) = self.http_and_udp(config)?;
        let Some((listen, options)) = options::mqtt_listener(config) else {
            return Ok(BoundSockets { http, udp, mqtt: None });
        };
        let socket = http::listen(listen).with_context(|| format!("listen on {listen} (mqtt_listener.listen)"))?;
        Ok(BoundSockets { http, udp, mqtt: Some(mqtt::Listener::new(socket, options)) })
    }

    fn http_and_udp(self, config: &Config) -> anyhow::Result<(tokio::net::TcpListener, Option<udp::Sockets>)> {
        let listen = config.http.listen;
        let listener = if let Some(passed) = self.http {
            tracing::info!(%listen, "HTTP uses the socket that was passed to this process, and not http.listen");
            passed.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(passed))?
        } else {
            http::listen(listen).with_context(|| format!("listen on {listen} (http.listen)"))?
        };
        let Some(listen) = config.udp.listen.address() else { return Ok((listener, None)) };
        let options = options::udp(config);
        let sockets = if self.udp.is_empty() {
            udp::Sockets::bind(listen, options).with_context(|| format!("listen on {listen} (udp.listen)"))?
        } else {
            let sockets = self.udp.len();
            tracing::info!(%listen, sockets, "UDP uses sockets that were passed to this process, and not udp.listen");
            udp::Sockets::adopt(options, self.udp)?
        };
        Ok((listener, Some(sockets)))
    }

    fn add(&mut self, descriptor: RawFd) -> anyhow::Result<()> {
        let address: SockaddrStorage = getsockname(descriptor).context("it is not an open socket")?;
        let is_ip = matches!(address.family(), Some(AddressFamily::Inet | AddressFamily::Inet6));
        #[expect(unsafe_code, reason = "only the protocol says that this process owns the descriptor, which is open")]
        let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
        match getsockopt(&socket, sockopt::SockType)? {
            SockType::Stream if is_ip && getsockopt(&socket, sockopt::AcceptConn)? => {
                if self.http.replace(socket.into()).is_some() {
                    bail!("it is a second TCP socket, and HTTP has one address");
                }
            }
            SockType::Datagram if is_ip => {
                let socket = UdpSocket::from(socket);
                if self.udp_addr()?.is_some_and(|first| socket.local_addr().ok() != Some(first)) {
                    bail!("it is a UDP socket with another address than the first one");
                }
                self.udp.push(socket);
            }
            _ => bail!("it is neither a TCP socket that listens nor a UDP socket"),
        }
        Ok(())
    }
}
