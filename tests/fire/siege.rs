//! A siege: servers, clients that send to them, a schedule of faults, and the audit at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::audit;
use super::client::{Client, Order};
use super::ledger::{Identity, Ledger, Rule, Totals};
use super::report::{Line, say};
use super::store::Store;
use super::workload::{Sent, Workload};
use crate::harness::{Server, Setup, wait_until};

const CLIENTS: usize = 4;
/// How long a siege lasts, unless the environment says otherwise.
const SECONDS: u64 = 3;

/// A fight about one kind of fault and one store.
pub(crate) struct Siege<'a> {
    fault: &'static str,
    store: Store<'a>,
    seed: u64,
    /// Decides when faults come, and which.
    rng: StdRng,
    pub(crate) servers: Vec<Server>,
    addresses: Vec<watch::Sender<Option<String>>>,
    pub(crate) ledger: Arc<Ledger>,
    devices: Vec<Arc<str>>,
    /// No reading is older.
    pub(crate) start_ms: i64,
    clients: Vec<JoinHandle<()>>,
    order: watch::Sender<Order>,
    injected: u64,
    until: Instant,
}

impl<'a> Siege<'a> {
    /// Lays siege to one server.
    pub(crate) async fn begin(fault: &'static str, store: Store<'a>) -> Self {
        Self::begin_with(fault, store, store.rule(), vec![Server::start(store.setup()).await])
    }

    /// Lays siege to one server that is set up in a way of its own.
    pub(crate) async fn begin_set_up(fault: &'static str, store: Store<'a>, setup: Setup) -> Self {
        Self::begin_with(fault, store, store.rule(), vec![Server::start(setup).await])
    }

    /// Lays siege to servers that share a store.
    pub(crate) fn begin_with(fault: &'static str, store: Store<'a>, rule: Rule, servers: Vec<Server>) -> Self {
        let seed = seed();
        let (ledger, order) = (Arc::new(Ledger::new(rule)), watch::Sender::new(Order::Send));
        let addresses: Vec<_> =
            servers.iter().map(|server| watch::Sender::new(Some(server.url().to_owned()))).collect();
        let start_ms = two_hours_ago_ms();
        let mut devices = Vec::new();
        let client = |number: usize| {
            let workload = Workload::new(seed, number, start_ms);
            devices.extend(workload.devices());
            let servers = addresses.iter().map(watch::Sender::subscribe).collect();
            let client = Client::new(seed.wrapping_add(number as u64), workload, servers, &ledger, order.subscribe());
            tokio::spawn(client.run())
        };
        let clients = (0..CLIENTS).map(client).collect();
        let until = Instant::now() + Duration::from_secs(from_environment("FIRE_SECONDS").unwrap_or(SECONDS));
        let rng = StdRng::seed_from_u64(seed.rotate_left(32));
        Self {
            fault,
            store,
            seed,
            rng,
            servers,
            addresses,
            ledger,
            devices,
            start_ms,
            clients,
            order,
            injected: 0,
            until,
        }
    }

    /// Whether there is time for another fault, of which there are `min` at least, however short the siege.
    /// Counts it.
    pub(crate) fn goes_on(&mut self, min: u64) -> bool {
        let goes_on = self.injected < min || Instant::now() < self.until;
        self.injected += u64::from(goes_on);
        goes_on
    }

    /// Waits until so many more readings are acknowledged, and a moment longer, so that what comes next comes
    /// in the middle of something.
    pub(crate) async fn acked(&mut self, readings: u64) {
        let enough = self.totals().acked + readings;
        wait_until("readings are acknowledged", async || {
            if let Some(client) = self.clients.iter_mut().find(|client| client.is_finished()) {
                client.await.expect("a client goes on");
            }
            (self.ledger.totals().acked >= enough).then_some(())
        })
        .await;
        let moment = self.rng.random_range(0..50_000);
        tokio::time::sleep(Duration::from_micros(moment)).await;
    }

    /// Like [`Siege::acked`], with a number of readings up to `most` that the seed decides.
    pub(crate) async fn some_acked(&mut self, most: u64) {
        let readings = self.rng.random_range(1..=most);
        self.acked(readings).await;
    }

    /// A number below `many`, which the seed decides.
    pub(crate) fn one_of(&mut self, many: usize) -> usize {
        self.rng.random_range(0..many)
    }

    /// Notes a reading that was sent beside those of the clients, and acknowledged.
    pub(crate) fn acked_beside(&mut self, reading: Sent) {
        if !self.devices.contains(&reading.device) {
            self.devices.push(Arc::clone(&reading.device));
        }
        let attempt = self.ledger.begin(&Arc::new(vec![reading]));
        self.ledger.acked(&attempt, 1, Duration::ZERO);
    }

    /// Notes that a reading of a device was refused, at an instant within a minute of `near_ms` that has no
    /// reading, and says which.
    pub(crate) fn refused_beside(&mut self, device: &Arc<str>, near_ms: i64) -> i64 {
        let minute = near_ms - near_ms.rem_euclid(60_000);
        let known = self.ledger.identities();
        let is_free = |ts_ms: &i64| !known.iter().any(|identity| identity.0 == *device && identity.1 == *ts_ms);
        let ts_ms = (minute..minute + 60_000).find(is_free).expect("an instant");
        let reading = Sent { device: Arc::clone(device), ts_ms, values: vec![0.0], bad: false };
        let attempt = self.ledger.begin(&Arc::new(vec![reading]));
        self.ledger.refused(&attempt);
        ts_ms
    }

    /// Waits until the store has taken readings that it had not when this was called.
    pub(crate) async fn stored_something(&self) {
        let stored = async || self.servers[0].metrics().await.count("tidegauge_readings_stored_total");
        let before = stored().await;
        wait_until("the store takes readings again", async || (stored().await > before).then_some(())).await;
    }

    /// The counts so far.
    pub(crate) fn totals(&self) -> Totals {
        self.ledger.totals()
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

    /// Ends a server the polite way; it must say that all is well.
    pub(crate) async fn terminate(&mut self, which: usize) {
        let status = self.servers[which].terminate().await;
        self.addresses[which].send_replace(None);
        assert_eq!(status.code(), Some(0), "{status}: {}", self.servers[which].log());
    }

    /// Starts a server again, and tells the clients where it listens.
    pub(crate) async fn restart(&mut self, which: usize) {
        self.servers[which].start_again().await;
        let url = self.servers[which].url().to_owned();
        self.addresses[which].send_replace(Some(url));
    }

    /// Holds the clients back until all that waits is stored, however slowly that goes.
    pub(crate) async fn drain(&self) {
        self.order.send_replace(Order::Wait);
        for server in &self.servers {
            server.settled().await;
        }
        self.order.send_replace(Order::Send);
    }

    /// Lets the clients end, and waits until everything is stored.
    pub(crate) async fn settle(&mut self) {
        self.stop_clients().await;
        for server in &self.servers {
            server.settled().await;
        }
    }

    /// Restarts the first server with another set-up, after the clients have ended.
    pub(crate) async fn set_up_again(&mut self, setup: Setup) {
        self.stop_clients().await;
        self.kill(0);
        self.servers[0].start_again_with(setup).await;
    }

    async fn stop_clients(&mut self) {
        self.order.send_replace(Order::Stop);
        for client in self.clients.drain(..) {
            client.await.expect("a client ends well");
        }
    }

    /// Like [`Siege::audit`], where the readings of one device are not in the store but in the dead-letter
    /// file.
    pub(crate) async fn audit_with(mut self, device: &str, letters: BTreeMap<(i64, String), f64>) {
        let of_device = |identity: &Identity| *identity.0 == *device;
        for identity in self.ledger.identities().into_iter().filter(of_device) {
            let (found, allowed) =
                (letters.get(&(identity.1, identity.2.to_owned())).copied(), self.ledger.allowed(&identity));
            assert!(allowed.contains(&found), "the dead letters say {found:?} of {identity:?}, it may be {allowed:?}");
        }
        self.ledger.forget(device);
        self.devices.retain(|other| **other != *device);
        self.audit().await;
    }

    /// What an audit finds, once everything is stored.
    pub(crate) async fn findings(&mut self) -> audit::Findings {
        self.settle().await;
        let mut findings = audit::Findings::default();
        for server in &self.servers {
            audit::judge(server, &self.devices, &self.ledger, self.store, &mut findings).await;
        }
        findings
    }

    /// Ends the siege: everything that was acknowledged is there, once, and nothing else.
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

impl Drop for Siege<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { fault, store, seed, injected, .. } = self;
            let store = store.name();
            say(&format!("fire | {fault} | {store} | FAILED at fault {injected} | FIRE_SEED={seed}"));
        }
    }
}

/// The seed of this run: a new one each time, or the one to repeat.
pub(crate) fn seed() -> u64 {
    from_environment("FIRE_SEED").unwrap_or_else(|| rand::random::<u32>().into())
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a whole number")))
}

/// The start of the hour two hours ago: two hours that are over, and one that is not.
fn two_hours_ago_ms() -> i64 {
    #[expect(clippy::disallowed_methods, reason = "a run without a seed takes one from the date")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64;
    now - now % 3_600_000 - 2 * 3_600_000
}
