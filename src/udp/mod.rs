//! UDP ingest: datagrams of one or more lines, each JSON or line protocol.
//!
//! Several sockets share the address, and the kernel distributes the senders over them. The thread of a
//! socket receives many datagrams with one call, appends all of them to the log as one record, and goes on
//! without waiting for the disk. The thread waits for its oldest record only if no more datagrams have
//! arrived, or too many bytes are on their way. So a slow disk leads to larger batches, then to a fuller
//! receive buffer, and at last to drops in the kernel, which are counted.
//!
//! Before a datagram is parsed, [`access`](crate::access) decides which devices it may write: if keys are
//! configured, it must be signed.
//!
//! Promises:
//! - Every datagram that reached the machine is counted once: received, or dropped by the kernel. Received
//!   datagrams that were too large, had no accepted reading, or did not fit into the log are counted by
//!   cause. Not counted are those that the kernel dropped before the start at a passed socket.
//! - Memory is bounded: per socket one buffer in the kernel, and as many bytes on their way into the log.
//! - On shutdown, the threads receive the datagrams that the kernel still has.
//!
//! Senders get no answer. Refusals are logged with their sender, at most once a minute for each sender and
//! code, and one by one at the log level `tidegauge::udp=debug`.
//!
//! Only this room knows UDP sockets; [`ingest`](crate::ingest) decides which readings are accepted.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Gate;
use crate::config::{self, LineProtocol};
use crate::ingest::Ingest;
use crate::telemetry::{Metrics, RefusalLog};
use crate::wire::json;

mod datagram;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod inbox;
mod kernel_drops;
mod sequences;
mod sockets;
mod worker;

use kernel_drops::KernelDrops;
use sequences::Sequences;
use worker::{Counters, Worker};

/// The options of UDP ingest.
#[derive(Debug, Clone)]
pub struct Options {
    /// The section `[udp]` of the configuration.
    pub udp: config::Udp,
    /// The meaning of tags and strings in line protocol.
    pub line_protocol: LineProtocol,
    /// The choices that JSON leaves to the configuration.
    pub json: json::Options<'static>,
}

/// Bound sockets that do not receive yet.
#[derive(Debug)]
pub struct Sockets {
    bound: Vec<UdpSocket>,
    /// Another process made the sockets, and may keep them over restarts.
    are_passed: bool,
    receive_buffer_bytes: usize,
    options: Options,
}

/// The running threads that receive datagrams.
#[derive(Debug)]
pub struct Receiving {
    threads: TaskTracker,
    drops: Option<tokio::task::JoinHandle<()>>,
}

impl Sockets {
    /// Binds the sockets to an address.
    ///
    /// Warns when the kernel grants smaller buffers than asked for.
    ///
    /// # Errors
    /// When the address cannot be bound, for example because another process uses it.
    pub fn bind(listen: SocketAddr, options: Options) -> io::Result<Self> {
        let (bound, receive_buffer_bytes) =
            sockets::bind(listen, options.udp.sockets, options.udp.receive_buffer.as_usize())?;
        Ok(Self::warned(options, bound, receive_buffer_bytes))
    }

    /// Uses sockets that are bound already: at least one, and all to the same address.
    ///
    /// Asks the kernel for the same buffers as [`Self::bind`].
    ///
    /// # Errors
    /// When a socket does not take its options.
    pub fn adopt(options: Options, bound: Vec<UdpSocket>) -> io::Result<Self> {
        let mut receive_buffer_bytes = usize::MAX;
        for socket in &bound {
            let granted_bytes = sockets::ensure_buffer(socket, options.udp.receive_buffer.as_usize())?;
            receive_buffer_bytes = receive_buffer_bytes.min(granted_bytes);
        }
        Ok(Self { are_passed: true, ..Self::warned(options, bound, receive_buffer_bytes) })
    }

    /// Warns if the kernel grants less than the options ask for.
    fn warned(options: Options, bound: Vec<UdpSocket>, receive_buffer_bytes: usize) -> Self {
        if let Some(advice) = sockets::advice(options.udp.receive_buffer.as_usize(), receive_buffer_bytes) {
            tracing::warn!("{advice}");
        }
        Self { bound, are_passed: false, receive_buffer_bytes, options }
    }

    /// The address to which the sockets are bound.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.bound[0].local_addr()
    }

    /// Starts a thread for each socket, and returns. Must be called on a runtime.
    ///
    /// The threads receive until `shutdown` is cancelled, and then the datagrams that have arrived by then.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(
        self,
        gate: &Arc<Gate>,
        ingest: &Ingest,
        metrics: &Metrics,
        refusals: &Arc<RefusalLog>,
        shutdown: &CancellationToken,
    ) -> io::Result<Receiving> {
        metrics.udp_receive_buffer_bytes.set(self.receive_buffer_bytes as f64);
        let counters = Counters::new(metrics);
        let drops = KernelDrops::of(&self.bound, self.are_passed, metrics.udp_dropped_total.with("kernel"));
        let drops =
            drops.inspect_err(|error| tracing::warn!(%error, "cannot read /proc/net/udp; drops are not counted"));
        let sequences =
            Arc::new(Sequences::new(self.options.udp.max_sequences, metrics.udp_sequence_gaps_total.clone()));
        let (wakes_at_shutdown, open) = UnixStream::pair()?;
        let wakes_at_shutdown = Arc::new(wakes_at_shutdown);
        let cancelled = shutdown.clone();
        tokio::spawn(async move {
            cancelled.cancelled().await;
            drop(open);
        });
        let threads = TaskTracker::new();
        for (number, socket) in self.bound.into_iter().enumerate() {
            let worker = Worker {
                socket,
                options: self.options.clone(),
                ingest: ingest.clone(),
                counters: counters.clone(),
                sequences: Arc::clone(&sequences),
                refusals: Arc::clone(refusals),
                gate: Arc::clone(gate),
                shutdown: shutdown.clone(),
                wakes_at_shutdown: Arc::clone(&wakes_at_shutdown),
            };
            let running = threads.token();
            let run = move || {
                worker.run();
                drop(running);
            };
            std::thread::Builder::new().name(format!("udp-{number}")).spawn(run)?;
        }
        threads.close();
        Ok(Receiving { threads, drops: drops.ok().map(|drops| tokio::spawn(drops.watch())) })
    }
}

impl Receiving {
    /// Waits until the threads have ended, soon after the shutdown.
    ///
    /// All datagrams that they received are then in the log or counted as lost.
    pub async fn ended(self) {
        self.threads.wait().await;
        if let Some(drops) = self.drops {
            drops.abort();
        }
    }
}
