//! UDP ingest: datagrams of one or more lines, each JSON or line protocol.
//!
//! Several sockets share the address, and the kernel spreads the senders over them. Each has a thread that
//! takes what the kernel holds with one call, appends all of it to the log as one record, and goes on without
//! waiting for the disk. Only when nothing more is there, or too much is on its way, it waits for the oldest
//! record. So a slow disk makes larger batches, then a fuller receive buffer, and at last drops in the
//! kernel, which are counted.
//!
//! What a datagram may write, [`access`](crate::access) says before a reading is looked for in it: once there
//! are keys, it has to be signed.
//!
//! Promises:
//! - Every datagram that reached the machine is counted once: received, or dropped by the kernel. Of those
//!   received, what was too large, had no acceptable reading, or found no room in the log is counted too.
//! - Memory is bounded: per socket one buffer in the kernel, and as much on its way into the log.
//! - On shutdown, what the kernel holds is still taken.
//!
//! Senders get no answer. What is refused is logged with its sender, once a minute at most for each sender
//! and code, and one by one on the log level `tidegauge::udp=debug`.
//!
//! Only this room knows of sockets for datagrams; what a reading may be is decided in
//! [`ingest`](crate::ingest).

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Gate;
use crate::ingest::Ingest;
use crate::telemetry::{Metrics, RefusalLog};

mod datagram;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod inbox;
mod kernel_drops;
mod refusal;
mod sequences;
mod sockets;
mod worker;

use kernel_drops::KernelDrops;
use sequences::Sequences;
use worker::{Counters, Worker};

/// What the UDP edge obeys.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// How many sockets share it.
    pub sockets: usize,
    /// Bytes that the kernel holds for each socket, and as many that each has on the way into the log.
    pub receive_buffer_bytes: usize,
    /// The largest datagram.
    pub max_datagram_bytes: usize,
    /// For how many devices the number of the last message is remembered.
    pub max_sequences: usize,
    /// The tags of line protocol that may name the device.
    pub device_tags: Vec<String>,
}

/// Bound sockets, which receive nothing yet.
#[derive(Debug)]
pub struct Sockets {
    bound: Vec<UdpSocket>,
    receive_buffer_bytes: usize,
    options: Options,
}

/// Threads that receive.
#[derive(Debug)]
pub struct Receiving {
    threads: TaskTracker,
    drops: Option<tokio::task::JoinHandle<()>>,
}

impl Sockets {
    /// Binds the sockets. Warns when the kernel grants smaller buffers than asked for.
    ///
    /// # Errors
    /// When the address cannot be used, or somebody else uses it already.
    pub fn bind(options: Options) -> io::Result<Self> {
        let (bound, receive_buffer_bytes) =
            sockets::bind(options.listen, options.sockets, options.receive_buffer_bytes)?;
        if let Some(advice) = sockets::advice(options.receive_buffer_bytes, receive_buffer_bytes) {
            tracing::warn!("{advice}");
        }
        Ok(Self { bound, receive_buffer_bytes, options })
    }

    /// The address in use.
    ///
    /// # Errors
    /// When the system does not tell it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.bound[0].local_addr()
    }

    /// Receives until `shutdown` is cancelled, and then what has arrived by then. Must be called on a
    /// runtime.
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
        let drops = KernelDrops::of(&self.bound, metrics.udp_dropped_total.with("kernel"));
        let drops =
            drops.inspect_err(|error| tracing::warn!(%error, "datagrams that the kernel drops are not counted"));
        let sequences = Arc::new(Sequences::new(self.options.max_sequences, metrics.udp_sequence_gaps_total.clone()));
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
    /// Waits until the threads have ended, which they do soon after the shutdown, with everything that they
    /// received in the log.
    pub async fn ended(self) {
        self.threads.wait().await;
        if let Some(drops) = self.drops {
            drops.abort();
        }
    }
}
