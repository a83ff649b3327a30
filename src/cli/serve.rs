//! `tidegauge serve`: starts all rooms, runs them, and stops them in order.
//!
//! `tidegauge demo` serves in the same way, with a configuration of its own.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::OptionFuture;
use tidegauge::access::{Gate, Tokens};
use tidegauge::common::clock::Clock;
use tidegauge::config::{Auth, Config, Period, StoreKind, SyncPolicy};
use tidegauge::flush::{DeadLetters, Drained, Pipeline, Running};
use tidegauge::forward::Forwarding;
use tidegauge::http::{self, App};
use tidegauge::ingest::Ingest;
use tidegauge::ingest::devices::Devices;
use tidegauge::limits::BodyMemory;
use tidegauge::log::{Instruments, Log, Recovery, Sync};
use tidegauge::query::Queries;
use tidegauge::store::mongodb::{BucketStore, TimeseriesStore};
use tidegauge::store::sqlite::SqliteStore;
use tidegauge::store::{Store, expiry};
use tidegauge::telemetry::{Exposition, Metrics, RefusalLog, VERSION, logs};
use tidegauge::tls::Tls;
use tidegauge::{log, mqtt, udp};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::data_dir::{self, DataDir};
use super::settings::Settings;

mod forwarding;
mod open_files;
pub(super) mod options;
mod reload;
mod signals;
mod sockets;
mod store_watch;

pub(super) use forwarding::options as forwarding_options;
pub(super) use options::{newest_closed_hour, rollups};
use reload::Replaceable;
pub(super) use signals::StopSignals;
use sockets::{BoundSockets, PassedSockets};

/// Serves until SIGTERM or SIGINT, then drains.
pub(super) async fn run(settings: &Settings) -> anyhow::Result<()> {
    if settings.ask_for_json() {
        logs::expect_json();
    }
    let (config, overridden) = settings.load_and_compare()?;
    logs::init(&config.telemetry)?;
    for overridden in overridden {
        tracing::info!("{overridden}");
    }
    serve(&config, Some(settings), |listening| announce(&config, listening)).await
}

/// Serves with a configuration until SIGTERM or SIGINT, then drains.
///
/// Sockets that were passed to the process replace the addresses of the configuration. With `settings`,
/// SIGHUP reloads them; without, SIGHUP stops the server too.
pub(super) async fn serve(
    configured: &Config,
    settings: Option<&Settings>,
    announce: impl FnOnce(Listening) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let passed = PassedSockets::take()?;
    let passed_at = (passed.http_addr()?, passed.udp_addr()?);
    let config = &configured.listening_at(passed_at.0, passed_at.1)?;
    open_files::raise_limit();
    // A reload that comes during the start waits for its end. By default SIGHUP ends the process.
    let hangups = settings.map(|_| signal(SignalKind::hangup())).transpose()?;
    // By default the stop signals end the process, but not the first process of a container.
    let mut signals = StopSignals::new(settings.is_none())?;
    signals::ignore_user_signals()?;
    let Auth { allow_anonymous, tokens, keys, .. } = &config.auth;
    if *allow_anonymous && !(tokens.is_empty() && keys.is_empty()) {
        tracing::warn!("there are tokens or keys, but auth.allow_anonymous admits every client without one");
    }
    let clock = Clock::system();
    let tls = Tls::load(&config.http.tls, &clock)?.map(Arc::new);
    let forward = forwarding::options(config, &clock)?;
    let brokers = options::mqtt(config)?;
    let data = DataDir::lock(&config.server.data_dir)?;
    let has_sqlite = config.store_kind() == StoreKind::Sqlite;
    let sqlite_lock = has_sqlite.then(|| data_dir::lock_sqlite(&config.sqlite_file())).transpose()?;
    let BoundSockets { http: listener, udp: datagrams, mqtt: mqtt_devices } = passed.or_bound(config)?;
    let http = listener.local_addr()?;
    let udp = datagrams.as_ref().map(udp::Sockets::local_addr).transpose()?;
    let mqtt = mqtt_devices.as_ref().map(mqtt::Listener::local_addr).transpose()?;
    let (metrics, exposition) = Metrics::new();
    metrics.record_config(true, clock.now_ms());
    let threads = http::Threads::start().context("start the threads of connections")?;
    let transports = Transports { datagrams, brokers, mqtt_devices, tls: tls.clone() };
    let instruments = (Arc::new(metrics), exposition);
    let start = Box::pin(Service::start(config, &data, &clock, instruments, transports, forward)); // it is large
    let service = tokio::select! {
        service = start => service?,
        name = signals.received() => {
            tracing::info!(reason = name, "stopped during the start; the next start stores what the log has");
            // Tasks of the start may be at work, so the locks end with the process.
            std::mem::forget((data, sqlite_lock));
            return Ok(());
        }
    };
    if let Some(tls) = &tls {
        tls.record_expiry(&service.app.metrics);
    }
    let replaceable = Replaceable {
        config: configured.clone(),
        passed_at,
        gate: Arc::clone(&service.app.gate),
        tls: tls.clone(),
        metrics: Arc::clone(&service.app.metrics),
        clock,
    };
    let reloading = settings.zip(hangups).map(|(settings, hangups)| reload::on_hangup(settings, hangups, replaceable));
    tracing::info!(
        version = VERSION,
        store = service.store.name(),
        rollups = options::rollups(config),
        pending_readings = service.app.pipeline.status().pending_readings,
        "started"
    );
    announce(Listening { http, udp, mqtt, store: service.store.name() })?;
    let grace = config.server.shutdown_grace.as_duration();
    let reason = tokio::select! {
        reason = service.run((listener, threads), tls, signals, grace) => reason,
        Some(never) = OptionFuture::from(reloading) => match never {},
    };
    service.stop(reason, grace).await
}

/// Where a server listens, and its store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listening {
    pub(super) http: SocketAddr,
    pub(super) udp: Option<SocketAddr>,
    mqtt: Option<SocketAddr>,
    store: &'static str,
}

/// Prints the addresses in a line for programs.
///
/// On a terminal, it also prints first commands for people.
fn announce(config: &Config, listening: Listening) -> anyhow::Result<()> {
    let Listening { http: address, udp, mqtt, store } = listening;
    let [udp, mqtt] = [udp, mqtt].map(|at| at.map_or_else(|| "off".to_owned(), |address| address.to_string()));
    let data = config.server.data_dir.display();
    let mut out = std::io::stdout().lock();
    let tls = if config.http.tls.is_on() { "on" } else { "off" };
    let (http, data) = (address.to_string(), data.to_string());
    let fields = [("http", &*http), ("tls", tls), ("udp", &*udp), ("mqtt", &*mqtt), ("store", store), ("data", &*data)];
    if let Some(line) = logs::json_line("INFO", "listening", &fields) {
        writeln!(out, "{line}")?;
    } else {
        writeln!(out, "listening {}", fields.map(|(name, value)| format!("{name}={value}")).join(" "))?;
        if out.is_terminal() {
            hint(&mut out, config, address)?;
        }
    }
    Ok(out.flush()?)
}

/// Prints first commands to try.
fn hint(out: &mut impl Write, config: &Config, address: SocketAddr) -> std::io::Result<()> {
    let scheme = if config.http.tls.is_on() { "https" } else { "http" };
    let curl =
        if config.auth.lets_anybody_in() { "curl" } else { "curl -H \"Authorization: Bearer $TIDEGAUGE_TOKEN\"" };
    let reading = r#"{"deviceId":"S1","values":{"temp":22.4}}"#;
    writeln!(out, "try it:    {curl} {scheme}://{address}/v1/readings --json '{reading}'")?;
    writeln!(out, "and then:  {curl} {scheme}://{address}/v1/devices/S1/rollups")?;
    writeln!(out, "dashboard: {scheme}://{address}/")
}

/// Why the service stops.
#[derive(Debug)]
enum Reason {
    /// A signal of this name.
    Signal(&'static str),
    /// A failure, with its reason.
    Failure(String),
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal(name) => name.fmt(f),
            Self::Failure(why) => why.fmt(f),
        }
    }
}

/// The transports of readings besides HTTP. `tls` is for MQTT devices.
struct Transports {
    datagrams: Option<udp::Sockets>,
    brokers: Vec<mqtt::Options>,
    mqtt_devices: Option<mqtt::Listener>,
    tls: Option<Arc<Tls>>,
}

/// All rooms of a running service.
struct Service {
    store: Arc<dyn Store>,
    running: Running,
    forwarding: Option<Forwarding>,
    app: Arc<App>,
    receiving: Option<udp::Receiving>,
    /// The clients of MQTT brokers, and the connections of MQTT devices.
    mqtt_tasks: TaskTracker,
    /// Cancelled when the service stops accepting requests, datagrams and messages.
    closing: CancellationToken,
    /// Tasks that stop with the service.
    helpers: Vec<tokio::task::JoinHandle<()>>,
}

impl Service {
    async fn start(
        config: &Config,
        data: &DataDir,
        clock: &Clock,
        (metrics, exposition): (Arc<Metrics>, Exposition),
        Transports { datagrams, brokers, mqtt_devices, tls }: Transports,
        forward: Option<tidegauge::forward::Options>,
    ) -> anyhow::Result<Self> {
        data_dir::expect_log(data.path()).map_err(data_dir::explain)?;
        let log_dir = data_dir::log_dir(data.path());
        if forward.is_some() {
            log::add_follower(&log_dir).map_err(data_dir::explain)?;
        }
        let (log, recovery) = open_log(config, &log_dir, &metrics).await?;
        let log = Arc::new(log);
        // Start forwarding before the first cut, which would remove records that are not forwarded yet.
        let of_forwarding = forwarding::dead_letters(config, data, clock);
        let forwarding = forwarding::start(forward, (&log, recovery.start), of_forwarding.clone(), &metrics)?;
        let sqlite_was_there = config.sqlite_file().exists();
        let store = open_store(config, &metrics).await?;
        let known_store = data_dir::known_store(data.path());
        store_watch::compare(config, &known_store, &recovery, &*store, sqlite_was_there).await;
        store_watch::note(&known_store, &*store);
        let dead_letters = data_dir::dead_letters(data.path());
        let dead_letters = DeadLetters::new(dead_letters, config.flush.max_dead_letter_bytes.0, clock.clone());
        let dead_letters = dead_letters.with_copies(of_forwarding, forwarding.is_some());
        let pipeline = Pipeline::new(
            options::flush(config, data, clock),
            Arc::clone(&log),
            &recovery,
            Arc::clone(&store),
            dead_letters,
            Arc::clone(&metrics),
        )?;
        metrics.readings_recovered_total.increment(recovery.readings);
        let running = pipeline.start().context("start the log reader")?;
        pipeline.first_look().await;
        let mut helpers = Vec::new();
        let [readings, rollups] =
            [config.retention.readings, config.retention.rollups()].map(|keep| keep.period().map(Period::as_duration));
        let unstored = Arc::clone(&pipeline);
        let first_unstored_ms = async move || unstored.first_unstored_ms().await;
        let expiry = expiry::run(clock.clone(), Arc::clone(&store), readings, rollups, first_unstored_ms);
        helpers.push(tokio::spawn(expiry));
        let (store_id, known_id) = watch::channel(None);
        let watching = store_watch::run(known_store, Arc::clone(&store), Arc::clone(&metrics), store_id);
        helpers.push(tokio::spawn(watching));
        let upkeep = exposition.clone();
        helpers.push(tokio::spawn(async move { upkeep.upkeep().await }));
        let (devices, unknown_devices) = Devices::new(options::devices(config)).unzip();
        if let (Some(devices), Some(unknown_devices)) = (&devices, unknown_devices) {
            helpers.push(tokio::spawn(unknown_devices.run(Arc::clone(devices), Arc::clone(&store))));
        }
        let refusals = Arc::new(RefusalLog::default());
        let of_refusals = Arc::clone(&refusals);
        helpers.push(tokio::spawn(async move { of_refusals.run().await }));
        let rules = options::rules(config, store.keeps());
        let app = App {
            gate: Arc::new(Gate::new(Tokens::new(config))),
            hosts: options::hosts(config),
            ingest: Ingest::new(Arc::clone(&log), rules, devices, Arc::clone(&metrics), clock.clone()),
            queries: Queries::new(Arc::clone(&store), Arc::clone(&pipeline), options::query(config)),
            pipeline,
            store_id: known_id,
            log,
            log_max_bytes: config.log.max_bytes.0,
            pending_max_bytes: config.pending.max_bytes.0,
            clock: clock.clone(),
            metrics,
            refusals,
            exposition,
            body_memory: BodyMemory::new(config.http.max_bytes_in_flight.as_usize()),
            query_limits: options::queries(config),
            main: tokio::runtime::Handle::current(),
            limits: options::http(config),
            formats: options::formats(config),
        };
        let silent_after = config.devices.silent_after.as_duration();
        if !silent_after.is_zero() {
            let (queries, metrics, clock) = (app.queries.clone(), Arc::clone(&app.metrics), clock.clone());
            let count =
                async move { queries.count_silent_devices(silent_after, &clock, &metrics.devices_silent).await };
            helpers.push(tokio::spawn(count));
        }
        let closing = CancellationToken::new();
        let receiving = datagrams
            .map(|sockets| sockets.start(&app.gate, &app.ingest, &app.metrics, &app.refusals, &closing))
            .transpose();
        let receiving = receiving.context("start receiving datagrams")?;
        let mqtt_tasks = TaskTracker::new();
        mqtt::subscribe(brokers, &app.ingest, &app.metrics, &app.refusals, &mqtt_tasks, &closing);
        let rooms = mqtt::Rooms {
            gate: &app.gate,
            ingest: &app.ingest,
            memory: &app.body_memory,
            clock,
            metrics: &app.metrics,
            refusals: &app.refusals,
        };
        if let Some(listener) = mqtt_devices {
            listener.start(&rooms, tls, &mqtt_tasks, &closing);
        }
        mqtt_tasks.close();
        let app = Arc::new(app);
        Ok(Self { store, running, forwarding, app, receiving, mqtt_tasks, closing, helpers })
    }

    /// Serves until there is a reason to stop, then completes the requests in progress.
    async fn run(
        &self,
        (listener, threads): (TcpListener, http::Threads),
        tls: Option<Arc<Tls>>,
        mut signals: StopSignals,
        grace: Duration,
    ) -> Reason {
        let mut http = tokio::spawn(http::serve(listener, threads, Arc::clone(&self.app), tls, self.closing.clone()));
        let reason = tokio::select! {
            name = signals.received() => Reason::Signal(name),
            why = self.app.pipeline.failed() => Reason::Failure(format!("the log cannot be read: {why}")),
            why = self.app.log.failed() => Reason::Failure(format!("the log has failed: {why}")),
        };
        let pending_readings = self.app.pipeline.status().pending_readings;
        tracing::info!(%reason, pending_readings, "stopping: pending readings are stored first");
        self.app.pipeline.begin_stop();
        self.closing.cancel();
        if tokio::time::timeout(grace, &mut http).await.is_err() {
            tracing::warn!("some requests were still in progress at the end of server.shutdown_grace");
            http.abort();
        }
        reason
    }

    /// Stores the pending readings within the grace period. The rest stays in the log.
    async fn stop(self, reason: Reason, grace: Duration) -> anyhow::Result<()> {
        if let Some(receiving) = self.receiving
            && tokio::time::timeout(grace, receiving.ended()).await.is_err()
        {
            tracing::warn!("some datagrams were not yet in the log at the end of server.shutdown_grace");
        }
        if tokio::time::timeout(grace, self.mqtt_tasks.wait()).await.is_err() {
            tracing::warn!("some MQTT messages were not yet in the log at the end of server.shutdown_grace");
        }
        self.app.log.close();
        let forwarded = OptionFuture::from(self.forwarding.map(|forwarding| forwarding.drain(grace)));
        let (Drained { left, store_away }, _) = tokio::join!(self.running.drain(grace), forwarded);
        self.helpers.iter().for_each(tokio::task::JoinHandle::abort);
        if left == 0
            && let Err(error) = self.store.close().await
        {
            tracing::warn!(%error, "the store was not closed; no reading is lost by that");
        }
        match store_away {
            _ if left > 0 && self.app.log.is_removed() => tracing::warn!(
                readings = left,
                "the log was removed, and the store has not taken these readings: they are lost"
            ),
            Some(why) if left > 0 => {
                tracing::warn!(
                    readings = left,
                    why,
                    "the store is away: these readings stay in the log for the next start"
                );
            }
            None if left > 0 => tracing::warn!(
                readings = left,
                "the store did not take all readings before the stop; these stay in the log for the next start"
            ),
            _ => {}
        }
        tracing::info!(pending_readings = left, "stopped");
        match reason {
            Reason::Signal(_) => Ok(()),
            Reason::Failure(why) => Err(anyhow::anyhow!(why)),
        }
    }
}

async fn open_log(config: &Config, dir: &Path, metrics: &Metrics) -> anyhow::Result<(Log, Recovery)> {
    let sync = match config.log.sync {
        SyncPolicy::Always => Sync::Always,
        SyncPolicy::Interval => Sync::Every(config.log.sync_interval.as_duration()),
    };
    let (segment_bytes, max_bytes) = (config.log.segment_bytes.0, config.log.max_bytes.0);
    let min_free = options::min_free(config);
    let group_window = config.log.group_window.as_duration();
    let options = log::Options { dir: dir.to_owned(), sync, group_window, segment_bytes, max_bytes, min_free };
    let instruments = Instruments {
        sync_seconds: metrics.log_sync_seconds.clone(),
        group_records: metrics.log_group_records.clone(),
    };
    // On a blocking thread, because it may read much, and a stop signal is to end the start.
    let opened = tokio::task::spawn_blocking(move || Log::open(options, instruments)).await?;
    let (log, recovery) = opened.map_err(data_dir::explain)?;
    if let Some(torn) = &recovery.torn {
        tracing::warn!(
            bytes = torn.bytes,
            byte = torn.offset,
            file = %torn.path.display(),
            "cut off bytes at the end of the log that are no whole record: a write that the last stop interrupted, or \
             damage to a write in the second before it"
        );
    }
    if recovery.readings > 0 {
        tracing::info!(readings = recovery.readings, "the log contains readings that may not be stored yet");
    }
    Ok((log, recovery))
}

/// Opens the store of a configuration.
pub(super) async fn open_store(config: &Config, metrics: &Metrics) -> anyhow::Result<Arc<dyn Store>> {
    Ok(match config.store_kind() {
        StoreKind::Sqlite => {
            let file = config.sqlite_file();
            let store = tokio::task::spawn_blocking(move || SqliteStore::open(&file)).await?;
            let store = store.context("open the embedded store (sqlite.file)")?;
            Arc::new(store.counting(options::unreadable_readings(metrics)))
        }
        StoreKind::Mongodb => Arc::new(BucketStore::connect(options::mongodb(config, metrics)).await?),
        StoreKind::MongodbTimeseries => {
            let timeseries = config.mongodb.timeseries.clone();
            Arc::new(TimeseriesStore::connect(options::mongodb(config, metrics), timeseries).await?)
        }
    })
}
