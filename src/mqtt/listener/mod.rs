//! The server for MQTT devices. It is no broker: devices only publish.
//!
//! Devices connect, authenticate as for HTTP, and publish. Each connection is one task (`connection`) with
//! the state of the protocol (`session`) and its own queue of messages. The server keeps nothing of a device
//! that has disconnected: no session, no retained message, no will.
//!
//! Promises, beside those of the room:
//! - A message with quality of service 1 is acknowledged after its readings are durable, in the order of
//!   arrival. In version 5 the acknowledgement says why nothing of a message is stored.
//! - Everything is bounded: connections, the time for a packet, the messages without an acknowledgement, the
//!   answers that a client does not read. Messages and the bodies of HTTP share one limit of memory.
//! - Until a client is authenticated, its connection has at most the bytes of one CONNECT, for at most
//!   `packet_timeout`.
//! - An idle connection has no buffer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::queue::Intake;
use super::{Formats, REFUSED, Topic};
use crate::access::Gate;
use crate::common::clock::Clock;
use crate::ingest::Ingest;
use crate::limits::BodyMemory;
use crate::telemetry::{GaugeGuard, Limit, Metrics, RefusalEntry, RefusalLog, Sender, What};
use crate::tls::{Failure, Tls};

mod client_ids;
mod connection;
mod ended;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod session;
#[cfg(test)]
mod stretch;

use client_ids::ClientIds;
use connection::Peer;
use ended::Ended;

/// The wait after a failed `accept`, mostly because the process has no free file.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The silence in seconds after which TCP asks whether the client is still there.
///
/// A client may switch off the keep-alive of MQTT. Then its connection would stay forever if the client is
/// lost.
const TCP_KEEP_ALIVE_SECONDS: u32 = 120;

/// The options of the server for MQTT devices.
#[derive(Debug, Clone)]
pub struct ListenerOptions {
    /// The number of connections that may be open at once.
    pub max_connections: usize,
    /// The size of the largest packet.
    pub max_packet_bytes: usize,
    /// The messages of a connection that may be unacknowledged at once.
    pub receive_maximum: u16,
    /// The time for a client to send its first packet, and to complete each packet.
    pub packet_timeout: Duration,
    /// The topics that devices may publish to, one for each template.
    pub topics: Arc<[Topic]>,
    /// The choices of the configuration for formats.
    pub formats: Formats,
}

/// The rooms that the server for MQTT devices uses.
#[derive(Debug)]
pub struct Rooms<'a> {
    /// The tokens and certificates that may connect.
    pub gate: &'a Arc<Gate>,
    /// Admission of readings into the log.
    pub ingest: &'a Ingest,
    /// The memory for messages and bodies.
    pub memory: &'a BodyMemory,
    /// The wall clock, for the expiry of tokens.
    pub clock: &'a Clock,
    /// The metrics that the server records.
    pub metrics: &'a Arc<Metrics>,
    /// The log lines about refusals.
    pub refusals: &'a Arc<RefusalLog>,
}

/// A socket that listens for devices.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    options: ListenerOptions,
}

/// The parts that all connections share.
struct Shared {
    options: ListenerOptions,
    intake: Intake,
    memory: BodyMemory,
    gate: Arc<Gate>,
    clock: Clock,
    client_ids: Arc<ClientIds>,
    tls: Option<Arc<Tls>>,
    shutdown: CancellationToken,
}

impl Listener {
    /// Makes a server for a socket that listens. [`Self::start`] starts it.
    #[must_use]
    pub const fn new(socket: TcpListener, options: ListenerOptions) -> Self {
        Self { socket, options }
    }

    /// The address in use.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Starts the server, and returns. With `tls`, all connections use TLS.
    ///
    /// The server and each connection are `tasks`. The server runs until `shutdown` is cancelled, and the
    /// connections end at most some seconds later. Must be called on a runtime.
    pub fn start(self, rooms: &Rooms<'_>, tls: Option<Arc<Tls>>, tasks: &TaskTracker, shutdown: &CancellationToken) {
        let Self { socket, options } = self;
        rooms.metrics.mqtt_refused_total.start_with(&REFUSED);
        rooms.metrics.mqtt_listener_ended_total.start_with(&Ended::CODES);
        if tls.is_some() {
            rooms.metrics.tls_handshakes_failed_total.start_with(&Failure::REASONS);
        }
        let intake = Intake {
            topics: Arc::clone(&options.topics),
            formats: options.formats.clone(),
            ingest: rooms.ingest.clone(),
            metrics: Arc::clone(rooms.metrics),
            refusals: Arc::clone(rooms.refusals),
        };
        let shared = Arc::new(Shared {
            options,
            intake,
            memory: rooms.memory.clone(),
            gate: Arc::clone(rooms.gate),
            clock: rooms.clock.clone(),
            client_ids: Arc::default(),
            tls,
            shutdown: shutdown.clone(),
        });
        tasks.spawn(accept(socket, shared, tasks.clone()));
    }
}

async fn accept(socket: TcpListener, shared: Arc<Shared>, tasks: TaskTracker) {
    let max_connections = shared.options.max_connections;
    let permits = Arc::new(Semaphore::new(max_connections));
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = shared.shutdown.cancelled() => return,
        };
        let (stream, address) = match accepted {
            Ok((stream, from)) => (stream, from.ip().to_canonical()),
            Err(error) => {
                shared.log_refused(Sender::All, "not_accepted", &error);
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            let metrics = &shared.intake.metrics;
            metrics.limited_total.of(Limit::MqttConnections).increment(1);
            metrics.mqtt_listener_ended_total.with(Ended::LIMIT).increment(1);
            shared.log_refused(
                Sender::Address(address),
                "too_many_connections",
                &format_args!("{max_connections} are open"),
            );
            continue;
        };
        let shared = Arc::clone(&shared);
        tasks.spawn(async move {
            let _open = GaugeGuard::new(&shared.intake.metrics.mqtt_listener_connections, 1);
            shared.secure(stream, address).await;
            drop(permit);
        });
    }
}

impl Shared {
    /// Serves a connection, after the handshake if the server has TLS.
    async fn secure(&self, stream: TcpStream, address: IpAddr) {
        let _ = stream.set_nodelay(true); // if this fails, it costs only latency
        let kept_alive = setsockopt(&stream, sockopt::KeepAlive, &true)
            .and_then(|()| setsockopt(&stream, sockopt::TcpKeepIdle, &TCP_KEEP_ALIVE_SECONDS))
            .and_then(|()| setsockopt(&stream, sockopt::TcpKeepInterval, &(TCP_KEEP_ALIVE_SECONDS / 4)))
            .and_then(|()| setsockopt(&stream, sockopt::TcpKeepCount, &4));
        if let Err(error) = kept_alive {
            tracing::debug!(%error, "TCP keep-alive is not set");
        }
        let Some(tls) = &self.tls else { return self.serve(stream, Peer { address, certificate: None }).await };
        // The boxes keep the states of the handshake and of TLS out of this future, so that it stays small.
        let accepted = tokio::select! {
            accepted = Box::pin(tls.accept(stream, &self.shutdown, b"")) => accepted,
            () = self.shutdown.cancelled() => return,
        };
        match accepted {
            Ok((stream, certificate)) => {
                Box::pin(self.serve(Box::new(stream), Peer { address, certificate })).await;
            }
            Err(why) => {
                self.intake.metrics.tls_handshakes_failed_total.with(why.reason()).increment(1);
                tracing::debug!(%why, "a TLS handshake failed");
                if matches!(why, Failure::Certificate(_)) {
                    self.log_refused(Sender::Address(address), why.reason(), &why);
                }
            }
        }
    }

    fn log_refused(&self, sender: Sender, code: &'static str, why: &dyn std::fmt::Display) {
        let entry = RefusalEntry { what: What::Connections, code, count: 1, example: format!("MQTT: {why}") };
        self.intake.refusals.record(sender, entry, None);
    }
}
