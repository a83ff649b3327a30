//! The clients of the demo, which send the readings of the factory to the server.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tidegauge::client::{Client, Options, READINGS};
use tidegauge::common::clock::Clock;
use tokio::net::UdpSocket;
use tokio::time::MissedTickBehavior;

use super::super::import::{Batch, Sender};
use super::factory::{Delivery, Device, Factory};

/// How many requests with history run at once.
///
/// While the server reads one, the next is generated.
const HISTORY_REQUESTS: usize = 2;
/// The interval at which devices are asked for readings.
const TICK: Duration = Duration::from_millis(250);
/// The time for which a request is repeated.
const RETRY_FOR: Duration = Duration::from_secs(600);

/// The connections to the server.
pub(super) struct Clients {
    sender: Sender,
    udp: SocketAddr,
    clock: Clock,
}

impl Clients {
    /// Clients of the server with these addresses.
    pub(super) fn new(http: SocketAddr, udp: SocketAddr, clock: Clock) -> anyhow::Result<Self> {
        let client = Client::new(Options::new(&format!("http://{http}")))?;
        let sender = Sender::new(client, READINGS, RETRY_FOR);
        Ok(Self { sender, udp, clock })
    }

    /// Sends the history and, at the same time, live readings.
    ///
    /// If one of them fails, prints the error and ends both.
    pub(super) async fn run(self, factory: Arc<Factory>) {
        let ended = tokio::try_join!(self.send_history(&factory), self.send_live(&factory));
        if let Err(error) = ended {
            eprintln!("the simulated devices have stopped: {error:#}");
        }
    }

    async fn send_history(&self, factory: &Arc<Factory>) -> anyhow::Result<()> {
        let (begin, sent) = (Instant::now(), AtomicU64::new(0));
        let send = async |(device, range): (usize, Range<i64>)| {
            let factory = Arc::clone(factory);
            let line = tokio::task::spawn_blocking(move || factory.devices[device].past(range)).await?;
            if let Some(line) = line {
                sent.fetch_add(self.post(line).await?, Ordering::Relaxed);
            }
            anyhow::Ok(())
        };
        let parts = stream::iter(factory.history()).map(send).buffer_unordered(HISTORY_REQUESTS);
        parts.try_collect::<()>().await?;
        let (sent, seconds) = (sent.into_inner(), begin.elapsed().as_secs_f64());
        let told = writeln!(io::stdout(), "history:         {sent} readings of the last week, sent in {seconds:.1} s");
        Ok(told?)
    }

    async fn send_live(&self, factory: &Factory) -> anyhow::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let mut sent_until = vec![factory.start_ms; factory.devices.len()];
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now_ms = self.clock.now_ms();
            for (device, sent_until) in factory.devices.iter().zip(&mut sent_until) {
                let (lines, until_ms) = device.due(*sent_until, now_ms);
                *sent_until = until_ms;
                for line in lines {
                    self.send(device, line, &socket).await?;
                }
            }
        }
    }

    async fn send(&self, device: &Device, line: Vec<u8>, socket: &UdpSocket) -> anyhow::Result<()> {
        match device.delivery {
            Delivery::Http | Delivery::HttpLate => drop(self.post(line).await?),
            Delivery::HttpTwice => {
                self.post(line.clone()).await?;
                self.post(line).await?;
            }
            Delivery::Udp => drop(socket.send_to(&line, self.udp).await), // may be lost, as any datagram
        }
        Ok(())
    }

    /// Sends a line, and returns the number of accepted readings.
    async fn post(&self, line: Vec<u8>) -> anyhow::Result<u64> {
        let batch = Batch { file: "demo".into(), body: line.into(), lines: vec![1], done: None, readings: None };
        Ok(self.sender.send(&batch, |_| ()).await?.counts.accepted)
    }
}
