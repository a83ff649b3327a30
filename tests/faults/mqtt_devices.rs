//! MQTT devices that publish to tidegauge itself, while it or their connections end at random moments.
//!
//! A device remembers each message until it is acknowledged, and sends it again over its next connection.
//! Acknowledged messages are stored, once; and all are acknowledged at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::brokers::{START_MS, audit, topic};
use super::fault_test::{duration, seed};
use super::report::say;
use super::store::{Store, on_stores};
use crate::harness::Server;
use crate::mqtt_listener::{connect, publish};

/// The devices, each with a connection of its own.
const DEVICES: u64 = 4;
/// The messages of a device without an acknowledgement.
const WINDOW: usize = 50;
/// The topics of the server.
const TOPICS: &str = "receive_maximum = 60\n[[topics]]\ntopic = 'ledger/{deviceId}/{_}'\ntime = 'ts'\n";

on_stores!(kill_9_with_devices_of_mqtt, super::devices_publish, [sqlite, mongodb]);

/// The state that the devices share.
#[derive(Default)]
struct Fleet {
    /// The address of the server, which a restart changes.
    address: Mutex<Option<SocketAddr>>,
    /// The messages published so far: the number of each is in its topic, its time and its value.
    published: AtomicUsize,
    is_over: AtomicBool,
}

async fn devices_publish(store: Store<'_>) {
    let mut server = Server::start(store.setup().mqtt_listener(TOPICS)).await;
    let fleet = Arc::new(Fleet::default());
    *fleet.address.lock().expect("no panic") = Some(server.mqtt_addr());
    let devices: Vec<_> = (0..DEVICES)
        .map(|n| {
            let fleet = Arc::clone(&fleet);
            thread::spawn(move || Device::new(n).run(&fleet))
        })
        .collect();
    let mut dice = StdRng::seed_from_u64(seed());
    let until = Instant::now() + duration();
    let mut kills = 0;
    while kills < 5 || Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(dice.random_range(50..400))).await;
        *fleet.address.lock().expect("no panic") = None;
        server.kill9();
        server.start_again().await;
        *fleet.address.lock().expect("no panic") = Some(server.mqtt_addr());
        kills += 1;
    }
    fleet.is_over.store(true, Ordering::Relaxed);
    let join = move || devices.into_iter().flat_map(|device| device.join().expect("no panic")).collect();
    let acknowledged: BTreeSet<usize> = tokio::task::spawn_blocking(join).await.expect("no panic");
    let published = fleet.published.load(Ordering::Relaxed);
    assert_eq!(acknowledged.len(), published, "each message is acknowledged at last");
    assert!(published > 5 * WINDOW, "{published}");
    audit(&server, &acknowledged, published).await;
    say(&format!("fault test | MQTT devices | {} | kills {kills} | acknowledged {published} | lost 0", store.name()));
}

/// A device, with its messages that are not acknowledged, by packet ID.
struct Device {
    number: u64,
    is_v5: bool,
    dice: StdRng,
    waiting: BTreeMap<u64, usize>,
    /// The place of its next message among its own, of which the packet ID is made.
    next: u64,
    acknowledged: Vec<usize>,
}

impl Device {
    fn new(number: u64) -> Self {
        let dice = StdRng::seed_from_u64(seed().wrapping_add(number));
        Self {
            number,
            is_v5: number.is_multiple_of(2),
            dice,
            waiting: BTreeMap::new(),
            next: 1,
            acknowledged: Vec::new(),
        }
    }

    /// Publishes until the end, and then until each message is acknowledged. Returns their numbers.
    fn run(mut self, fleet: &Fleet) -> Vec<usize> {
        let mut deadline = Instant::now() + Duration::from_secs(120);
        while !fleet.is_over.load(Ordering::Relaxed) || !self.waiting.is_empty() {
            if !fleet.is_over.load(Ordering::Relaxed) {
                deadline = Instant::now() + Duration::from_secs(120);
            }
            assert!(Instant::now() < deadline, "{} messages are not acknowledged", self.waiting.len());
            let address = *fleet.address.lock().expect("no panic");
            let ended = address.map(|address| self.publish_over(address, fleet));
            if !matches!(ended, Some(Ok(()))) {
                thread::sleep(Duration::from_millis(10));
            }
        }
        self.acknowledged
    }

    /// Publishes over one connection until it ends.
    fn publish_over(&mut self, address: SocketAddr, fleet: &Fleet) -> io::Result<()> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.write_all(&connect(self.is_v5, &format!("device-{}", self.number), None, 60))?;
        read_packet(&mut stream)?;
        for (&id, &n) in &self.waiting {
            let mut packet = packet_of(self.is_v5, id, n);
            packet[0] |= 8; // DUP
            stream.write_all(&packet)?;
        }
        loop {
            let is_over = fleet.is_over.load(Ordering::Relaxed);
            while self.waiting.len() < WINDOW && !is_over {
                let (id, n) = (self.next, fleet.published.fetch_add(1, Ordering::Relaxed));
                self.next += 1;
                self.waiting.insert(id, n);
                stream.write_all(&packet_of(self.is_v5, id, n))?;
            }
            if self.waiting.is_empty() {
                return Ok(());
            }
            let packet = read_packet(&mut stream)?;
            if packet[0] != 0x40 {
                return Ok(()); // DISCONNECT
            }
            let (&oldest, &n) = self.waiting.first_key_value().expect("one waits");
            assert_eq!(packet[2..4], id_of(oldest).to_be_bytes(), "acknowledgements are in the order of the messages");
            assert!(packet.len() == 4, "{packet:?}");
            self.waiting.remove(&oldest);
            self.acknowledged.push(n);
            if self.dice.random_ratio(1, 300) {
                return Ok(()); // the connection is lost with the acknowledgements on their way
            }
        }
    }
}

fn id_of(id: u64) -> u16 {
    u16::try_from(id % 65_535 + 1).expect("at most 65,535")
}

fn packet_of(is_v5: bool, id: u64, n: usize) -> Vec<u8> {
    publish(is_v5, id_of(id), &topic(n), &json!({ "ts": START_MS + n as i64, "value": n }).to_string())
}

/// Reads a packet of less than 128 bytes.
fn read_packet(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut packet = vec![0; 2];
    stream.read_exact(&mut packet)?;
    packet.resize(2 + usize::from(packet[1]), 0);
    stream.read_exact(&mut packet[2..])?;
    Ok(packet)
}
