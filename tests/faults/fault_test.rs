//! A fault test: servers, clients that send to them, a schedule of faults, and the audit at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::audit;
use super::client::{Client, Order, WAIT_AFTER_BATCH};
use super::history::{History, Identity, Rule, Totals};
use super::report::{Line, say};
use super::store::Store;
use super::workload::{Sent, Workload};
use crate::harness::{Server, Setup, now_ms, wait_until};

const CLIENTS: usize = 4;
/// The duration of a fault test without `FAULT_SECONDS` in the environment.
const SECONDS: u64 = 3;

/// A test of one kind of fault on one store.
pub(crate) struct FaultTest<'a> {
    fault: &'static str,
    store: Store<'a>,
    seed: u64,
    /// Decides when faults happen, and which.
    rng: StdRng,
    pub(crate) servers: Vec<Server>,
    addresses: Vec<watch::Sender<Option<String>>>,
    pub(crate) history: Arc<History>,
    devices: Vec<Arc<str>>,
    /// The time of the oldest reading.
    pub(crate) start_ms: i64,
    clients: Vec<JoinHandle<()>>,
    order: watch::Sender<Order>,
    injected: u64,
    until: Instant,
}

impl<'a> FaultTest<'a> {
    /// Starts a test with one server.
    pub(crate) async fn start(fault: &'static str, store: Store<'a>) -> Self {
        Self::start_on(fault, store, store.rule(), vec![Server::start(store.setup()).await])
    }

    /// Starts a test with one server and another configuration.
    pub(crate) async fn start_with_setup(fault: &'static str, store: Store<'a>, setup: Setup) -> Self {
        Self::start_with_seed(fault, store, setup, seed()).await
    }

    /// Starts a test with one server and this seed.
    pub(crate) async fn start_with_seed(fault: &'static str, store: Store<'a>, setup: Setup, seed: u64) -> Self {
        Self::start_seeded(fault, store, store.rule(), vec![Server::start(setup).await], seed)
    }

    /// Starts a test with these servers, which share a store.
    pub(crate) fn start_on(fault: &'static str, store: Store<'a>, rule: Rule, servers: Vec<Server>) -> Self {
        Self::start_seeded(fault, store, rule, servers, seed())
    }

    fn start_seeded(fault: &'static str, store: Store<'a>, rule: Rule, servers: Vec<Server>, seed: u64) -> Self {
        let (history, order) = (Arc::new(History::new(rule)), watch::Sender::new(Order::Send));
        let addresses: Vec<_> =
            servers.iter().map(|server| watch::Sender::new(Some(server.url().to_owned()))).collect();
        let start_ms = before_midnight_ms();
        let seconds = from_environment("FAULT_SECONDS");
        let pause = if seconds.is_some() { Duration::ZERO } else { WAIT_AFTER_BATCH };
        let mut devices = Vec::new();
        let client = |number: usize| {
            let workload = Workload::new(seed, number, start_ms);
            devices.extend(workload.devices());
            let servers = addresses.iter().map(watch::Sender::subscribe).collect();
            let seed = seed.wrapping_add(number as u64);
            let client = Client::new(seed, workload, servers, &history, order.subscribe(), pause);
            tokio::spawn(client.run())
        };
        let clients = (0..CLIENTS).map(client).collect();
        let until = Instant::now() + duration();
        let rng = StdRng::seed_from_u64(seed.rotate_left(32));
        Self {
            fault,
            store,
            seed,
            rng,
            servers,
            addresses,
            history,
            devices,
            start_ms,
            clients,
            order,
            injected: 0,
            until,
        }
    }

    /// Whether the test injects another fault: at least `min`, then until its time is over. Counts the fault.
    pub(crate) fn next_fault(&mut self, min: u64) -> bool {
        let is_next = self.injected < min || Instant::now() < self.until;
        self.injected += u64::from(is_next);
        is_next
    }

    /// Waits until this many more readings are acknowledged and up to 50 ms longer, so that the next fault
    /// meets the server in any state.
    pub(crate) async fn wait_for_acks(&mut self, readings: u64) {
        let enough = self.totals().acked + readings;
        wait_until("readings are acknowledged", async || {
            if let Some(client) = self.clients.iter_mut().find(|client| client.is_finished()) {
                client.await.expect("a client runs until it is stopped");
            }
            (self.history.totals().acked >= enough).then_some(())
        })
        .await;
        let moment = self.rng.random_range(0..50_000);
        tokio::time::sleep(Duration::from_micros(moment)).await;
    }

    /// Like [`FaultTest::wait_for_acks`], with a seeded number of readings up to `most`.
    pub(crate) async fn wait_for_some_acks(&mut self, most: u64) {
        let readings = self.rng.random_range(1..=most);
        self.wait_for_acks(readings).await;
    }

    /// A seeded number below `limit`.
    pub(crate) fn random_below(&mut self, limit: usize) -> usize {
        self.rng.random_range(0..limit)
    }

    /// Records a reading that the test itself sent and the server acknowledged.
    pub(crate) fn record_acked(&mut self, reading: Sent) {
        if !self.devices.contains(&reading.device) {
            self.devices.push(Arc::clone(&reading.device));
        }
        let attempt = self.history.begin(&Arc::new(vec![reading]));
        self.history.acked(&attempt, 1, Duration::ZERO);
    }

    /// Records a refused reading of a device, at an instant without a reading within a minute of `near_ms`.
    /// Returns that instant.
    pub(crate) fn record_refused(&mut self, device: &Arc<str>, near_ms: i64) -> i64 {
        let minute = near_ms - near_ms.rem_euclid(60_000);
        let known = self.history.identities();
        let is_free = |ts_ms: &i64| !known.iter().any(|identity| identity.0 == *device && identity.1 == *ts_ms);
        let ts_ms = (minute..minute + 60_000).find(is_free).expect("an instant");
        let reading = Sent { device: Arc::clone(device), ts_ms, values: vec![0.0], bad: false };
        let attempt = self.history.begin(&Arc::new(vec![reading]));
        self.history.refused(&attempt);
        ts_ms
    }

    /// Waits until the store has stored more readings than at the time of the call.
    pub(crate) async fn wait_for_store(&self) {
        let stored = async || self.servers[0].metrics().await.count("tidegauge_readings_stored_total");
        let before = stored().await;
        wait_until("the store stores readings again", async || (stored().await > before).then_some(())).await;
    }

    /// The counts so far.
    pub(crate) fn totals(&self) -> Totals {
        self.history.totals()
    }

    /// Kills a server and starts it again.
    pub(crate) async fn kill_and_restart(&mut self, which: usize) {
        self.kill(which);
        self.restart(which).await;
    }

    /// Kills a server.
    pub(crate) fn kill(&mut self, which: usize) {
        self.servers[which].kill9();
        self.addresses[which].send_replace(None);
    }

    /// Ends a server with SIGTERM; its exit code must be 0.
    pub(crate) async fn terminate(&mut self, which: usize) {
        let status = self.servers[which].terminate().await;
        self.addresses[which].send_replace(None);
        assert_eq!(status.code(), Some(0), "{status}: {}", self.servers[which].log());
    }

    /// Starts a server again and gives the clients its address.
    pub(crate) async fn restart(&mut self, which: usize) {
        self.servers[which].start_again().await;
        let url = self.servers[which].url().to_owned();
        self.addresses[which].send_replace(Some(url));
    }

    /// Pauses the clients until all pending readings are stored and `drained` is true.
    pub(crate) async fn drain_until(&self, what: &str, mut drained: impl AsyncFnMut() -> bool) {
        self.order.send_replace(Order::Wait);
        for server in &self.servers {
            server.settled().await;
        }
        wait_until(what, async || drained().await.then_some(())).await;
        self.order.send_replace(Order::Send);
    }

    /// Stops the clients and waits until all readings are stored.
    pub(crate) async fn settle(&mut self) {
        self.stop_clients().await;
        for server in &self.servers {
            server.settled().await;
        }
    }

    /// Stops the clients, then restarts the first server with another configuration.
    pub(crate) async fn restart_with_setup(&mut self, setup: Setup) {
        self.stop_clients().await;
        self.kill(0);
        self.servers[0].start_again_with(setup).await;
    }

    async fn stop_clients(&mut self) {
        self.order.send_replace(Order::Stop);
        for client in self.clients.drain(..) {
            client.await.expect("a client ends without a panic");
        }
    }

    /// Like [`FaultTest::audit`], but the readings of one device are in the dead-letter file, not in the
    /// store.
    pub(crate) async fn audit_with(mut self, device: &str, letters: BTreeMap<(i64, String), f64>) {
        let of_device = |identity: &Identity| *identity.0 == *device;
        for identity in self.history.identities().into_iter().filter(of_device) {
            let (found, allowed) =
                (letters.get(&(identity.1, identity.2.to_owned())).copied(), self.history.allowed(&identity));
            assert!(allowed.contains(&found), "{identity:?} is {found:?} in the dead letters, allowed are {allowed:?}");
        }
        self.history.forget(device);
        self.devices.retain(|other| **other != *device);
        self.audit().await;
    }

    /// Stops the clients, waits until all readings are stored, and returns the findings of an audit.
    pub(crate) async fn findings(&mut self) -> audit::Findings {
        self.settle().await;
        let mut findings = audit::Findings::default();
        for server in &self.servers {
            audit::check(server, &self.devices, &self.history, self.store, &mut findings).await;
        }
        findings
    }

    /// The findings of an audit of a server that is no part of the test and must have the same readings.
    pub(crate) async fn findings_at(&self, server: &Server, store: Store<'_>) -> audit::Findings {
        let mut findings = audit::Findings::default();
        audit::check(server, &self.devices, &self.history, store, &mut findings).await;
        findings
    }

    /// Ends the test with an audit: exactly the acknowledged values are stored, each of them once.
    pub(crate) async fn audit(mut self) {
        let findings = self.findings().await;
        let totals = self.totals();
        let line = Line {
            fault: self.fault,
            store: self.store.name(),
            injected: self.injected,
            acked: totals.acked,
            lost: findings.lost.len(),
            duplicated: findings.duplicated.len(),
            longest_stall: totals.longest_stall,
            seed: self.seed,
        };
        line.print();
        findings.assert_none();
    }
}

impl Drop for FaultTest<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { fault, store, seed, injected, .. } = self;
            let store = store.name();
            say(&format!("fault test | {fault} | {store} | FAILED at fault {injected} | FAULT_SEED={seed}"));
        }
    }
}

/// The seed of this run: `FAULT_SEED` if that is set, else a new one.
pub(crate) fn seed() -> u64 {
    from_environment("FAULT_SEED").unwrap_or_else(|| rand::random::<u32>().into())
}

/// The duration of a fault test.
pub(crate) fn duration() -> Duration {
    Duration::from_secs(from_environment("FAULT_SECONDS").unwrap_or(SECONDS))
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a whole number")))
}

/// The start of the last hour of a closed day, so that the readings lie in that hour and in the day after:
/// from three o'clock on, that is the current day.
fn before_midnight_ms() -> i64 {
    closed_before_ms() - 3_600_000
}

/// The end of the last day (UTC) that ended three hours ago: a server closes it, even if its clock is two
/// hours behind.
pub(crate) fn closed_before_ms() -> i64 {
    let then = now_ms() - 3 * 3_600_000;
    then - then % 86_400_000
}
