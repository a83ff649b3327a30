//! `loadtest steady`: measures hours of ordinary operation in minutes.
//!
//! Each device of a fleet sends a reading a minute, for some hours around midnight. The service and its
//! mongod run with a [`Clock`] that is faster than time. So everything happens that happens in these hours:
//! buckets become due, hours end, a day is rolled up, readings expire, mongod writes checkpoints. CPU time is
//! real.
//!
//! Before the measurement, each device gets readings in earlier hours: in the hours of the day that ends at
//! midnight, so that a whole day is rolled up, and in some hours two days before, whose readings expire
//! during the measurement.

use std::net::SocketAddrV4;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, ensure};
use clap::{Args as _, FromArgMatches};
use tokio::task::JoinHandle;

mod clock;
mod options;
mod peak;
mod report;
mod watch;

use self::clock::Clock;
pub(crate) use self::options::{End, Setting, Store};
use self::peak::Peak;
use self::report::{Outcome, Report};
use self::watch::Watch;
use crate::format::Format;
use crate::http::{self, Sending, Until};
use crate::metrics;
use crate::systems::{Environment, Programs, Server};
use crate::target::Target;
use crate::udp;
use crate::verify::{self, Verified};
use crate::workload::{Kind, Workload};

pub(crate) const MINUTE_MS: u64 = 60_000;
pub(crate) const HOUR_MS: u64 = 60 * MINUTE_MS;

/// The midnight in the measurement: 2026-07-01T00:00:00Z.
const MIDNIGHT_MS: u64 = 1_782_864_000_000;

/// The most measured hours before midnight.
const HOURS_BEFORE_MIDNIGHT: u64 = 2;

/// The time that the preparations may take, by the fast clock.
const PREPARATION_MS: u64 = 2 * HOUR_MS;

/// The age at which readings expire.
///
/// With a shorter retention, single hours would be rolled up, and not whole days.
const RETENTION_MS: u64 = 48 * HOUR_MS;
const RETENTION: &str = "48h";

/// The time before the first hour in which the cost without readings is measured.
///
/// It is the shorter of `REST_MS` by the fast clock and `REAL_REST_MS` of real time.
const REST_MS: u64 = 10 * MINUTE_MS;
const REAL_REST_MS: u64 = MINUTE_MS;

/// The time after the last hour that is measured too.
///
/// It lasts at least `AFTER_MS`, and until all readings are stored. If they are not stored within
/// `STORED_LIMIT_MS`, the run fails.
const AFTER_MS: u64 = 15 * MINUTE_MS;
const STORED_LIMIT_MS: u64 = 6 * HOUR_MS;

/// The configuration that differs from the defaults.
///
/// Readings expire after two days. The preparations may send readings that are ahead of the clock. Timeouts
/// are long: the fast clock measures them, and the work of mongod and of the clients takes real time.
const CONFIG: [(&str, &str); 9] = [
    ("retention.readings", RETENTION),
    ("ingest.max_future", "2h"),
    ("limits.new_devices_per_minute", "0"),
    ("mongodb.timeout", "1h"),
    ("http.header_timeout", "1h"),
    ("http.body_timeout", "1h"),
    ("query.timeout", "1h"),
    ("query.catch_up_timeout", "1m"),
    ("server.shutdown_grace", "1h"),
];

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) programs: Programs,
    /// The store
    #[arg(long, value_enum, default_value_t = Store::Sqlite)]
    pub(crate) store: Store,
    /// Devices, each with a reading a minute
    #[arg(long, default_value_t = 20_000)]
    pub(crate) devices: u64,
    /// Hours; the third one begins at midnight
    #[arg(long, default_value_t = 3)]
    pub(crate) hours: u64,
    /// Minutes of one more hour
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..60))]
    pub(crate) minutes: u64,
    /// Real seconds, after the hours, in which each device sends five readings a minute; a multiple of 12
    #[arg(long, default_value_t = 0)]
    pub(crate) peak: u64,
    /// How many times as fast as time the clock runs
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) speed: u32,
    /// The format of the messages
    #[arg(long, value_enum, default_value_t = Format::Lines)]
    pub(crate) format: Format,
    /// Readings per message, each of another device; at most the devices of a connection
    #[arg(long, default_value_t = 1_000)]
    pub(crate) batch: u64,
    /// Connections (or sockets) over which the devices are spread
    #[arg(long, default_value_t = 4)]
    pub(crate) connections: u64,
    /// Send datagrams, and not HTTP requests
    #[arg(long)]
    pub(crate) udp: bool,
    /// Configuration of tidegauge, as SECTION.KEY=VALUE; may repeat
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<Setting>,
    /// When the run ends
    #[arg(long, value_enum, default_value_t = End::Stored)]
    pub(crate) end: End,
    /// Readings of each device in each of the earlier hours; 0 for none
    #[arg(long, default_value_t = 1)]
    pub(crate) earlier_readings: u64,
    /// Afterwards compare the rollups of this many devices with the acknowledged readings
    #[arg(long, default_value_t = 100)]
    pub(crate) verify: u64,
    /// Leave the folder with the data and the log lines
    #[arg(long)]
    pub(crate) keep: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let report = measure(args).await?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{report}");
    }
    let wrong = report.verified().map_or(0, |verified| verified.wrong);
    ensure!(wrong == 0, "{wrong} devices do not have what was acknowledged");
    Ok(())
}

/// Starts a server, measures the hours, and stops the server.
pub(crate) async fn measure(args: &Args) -> anyhow::Result<Report> {
    let system = args.store.system();
    if let Some(why) = args.programs.missing(system) {
        anyhow::bail!(why);
    }
    ensure!(args.devices >= args.connections && args.connections > 0 && args.batch > 0, "a connection has no device");
    let mut clock = Clock::starting_at(args.start_ms() - PREPARATION_MS)?;
    let settings = args.set.iter().map(|Setting(key, value)| (key.as_str(), value.as_str()));
    let mut environment = Environment::of_config(CONFIG.into_iter().chain(settings));
    environment.all = clock.environment();
    let mut server = Server::start(system, &args.programs, &environment).await?;
    if args.keep {
        server.keep();
    }
    eprintln!("{}", server.places());
    let measured = args.measure(&mut clock, &server).await;
    measured.with_context(|| format!("the service logged: {}", server.last_lines()))
}

impl Args {
    /// The default options, with a fleet of this size.
    pub(crate) fn fleet(programs: Programs, store: Store, devices: u64, speed: u32) -> anyhow::Result<Self> {
        let command = Self::augment_args(clap::Command::new("steady").no_binary_name(true));
        let defaults = Self::from_arg_matches(&command.try_get_matches_from(std::iter::empty::<String>())?)?;
        Ok(Self { programs, store, devices, speed, ..defaults })
    }

    /// When the first hour begins, in Unix milliseconds.
    fn start_ms(&self) -> u64 {
        let hours = self.hours + u64::from(self.minutes > 0);
        MIDNIGHT_MS - hours.min(HOURS_BEFORE_MIDNIGHT) * HOUR_MS
    }

    fn end_ms(&self) -> u64 {
        self.start_ms() + self.all_minutes() * MINUTE_MS
    }

    const fn all_minutes(&self) -> u64 {
        self.hours * 60 + self.minutes
    }

    async fn measure(&self, clock: &mut Clock, server: &Server) -> anyhow::Result<Report> {
        if self.earlier_readings > 0 {
            self.prepare(clock, server).await?;
        }
        let rest_ms = REST_MS.min(u64::from(self.speed) * REAL_REST_MS);
        clock.jump_and_run(self.start_ms() - rest_ms, self.speed)?;
        let mut watch = Watch::new(server, self.start_ms()).await?;
        tokio::time::sleep(clock.until(self.start_ms())?).await;
        let rest = watch.rest(rest_ms).await?;

        let sending = self.sending(server);
        let sender = self.send(&sending, server.udp);
        let mut hours = Vec::new();
        for nth in 1..=self.all_minutes().div_ceil(60) {
            let end_ms = (self.start_ms() + nth * HOUR_MS).min(self.end_ms());
            hours.push(watch.until(clock, end_ms, &sender).await?);
        }
        let sent = sender.await??;
        let peak = if self.peak == 0 { None } else { Some(Peak::send(self.peak, &sending, clock, server).await?) };
        clock.speed_up(self.speed)?;
        let after = match self.end {
            End::Stored => watch.until_stored(clock, self.end_ms() + AFTER_MS, self.end_ms() + STORED_LIMIT_MS).await?,
            End::Sent => watch.next_tick(clock).await?,
        };
        clock.slow_down()?;
        let accepted: u64 = hours.iter().chain([&after]).map(|span| span.readings).sum();
        let sent_readings = sent.readings + peak.as_ref().map_or(0, |peak| peak.sent.readings);
        let lost = sent_readings.saturating_sub(accepted);
        let mut parts = vec![(&sending, sent.messages.as_slice())];
        parts.extend(peak.as_ref().map(|peak| (&peak.sending, peak.sent.messages.as_slice())));
        let verified = self.verified(&parts, lost).await?;
        let behind_seconds = sent.behind_ms / 1_000.0 * f64::from(self.speed);
        let store_away = server.times_logged("the store is away")?;
        let outcome = Outcome { again: sent.again, lost, behind_seconds, store_away, verified };
        Ok(Report::new(self, rest, hours, peak.map(|peak| peak.figures), after, outcome))
    }

    /// The two ranges of earlier hours with readings, in Unix milliseconds.
    fn earlier_hours(&self) -> [Range<u64>; 2] {
        // A bucket expires up to an hour later than its readings. So the buckets of the first of these hours
        // expire in the first measured hour.
        let expiring_ms = self.start_ms() - RETENTION_MS - HOUR_MS;
        let day_ms = MIDNIGHT_MS - 24 * HOUR_MS;
        let expired_ms = (expiring_ms + (self.hours + 1) * HOUR_MS).min(day_ms);
        [expiring_ms..expired_ms, day_ms..self.start_ms()]
    }

    /// Sends the readings of earlier hours as fast as the service accepts them.
    ///
    /// Then it waits until they are stored and rolled up.
    async fn prepare(&self, clock: &mut Clock, server: &Server) -> anyhow::Result<()> {
        for hours in self.earlier_hours() {
            let mut sending = self.sending(server);
            let workload = &mut sending.workload;
            workload.step_ms = HOUR_MS / self.earlier_readings;
            workload.first_ms = hours.start;
            let readings = (hours.end - hours.start) / workload.step_ms * (self.devices / self.connections);
            sending.until = Until::Messages(readings / workload.batch);
            sending.rate = None;
            http::send(sending, Arc::new(AtomicU64::new(0))).await?;
        }
        clock.speed_up(self.speed)?;
        let until_due = clock.until(self.start_ms() - 2 * REST_MS)?;
        if let Ok(stored) = tokio::time::timeout(until_due, is_stored(server, 0)).await {
            return stored;
        }
        // Now all buckets of ended hours are due. Writing them is work of the store, which takes real time.
        // With a large `flush.max_age`, the buckets of the hour before the first one stay pending.
        clock.slow_down()?;
        let stored = is_stored(server, self.earlier_readings * self.devices);
        let stored = tokio::time::timeout(clock.until(self.start_ms() - REST_MS)?, stored).await;
        stored.context("the earlier readings are not stored in time")?
    }

    /// The messages of the measured hours, and when to send them.
    ///
    /// A message is due at the time of its last reading.
    fn sending(&self, server: &Server) -> Sending {
        let devices = self.devices / self.connections; // devices of one connection
        let batch = self.batch.min(devices);
        let first_ms = self.start_ms() - batch * MINUTE_MS / devices;
        let workload = Workload::steady(Kind::Fleet, self.devices, MINUTE_MS, batch, first_ms);
        Sending {
            address: server.address.clone(),
            target: Target::Tidegauge,
            format: self.format,
            connections: self.connections,
            rate: Some(workload.natural_rate() * f64::from(self.speed)),
            until: Until::Messages(self.all_minutes() * devices / batch),
            workload,
        }
    }

    /// Starts to send messages, by HTTP or UDP.
    fn send(&self, sending: &Sending, udp: SocketAddrV4) -> JoinHandle<anyhow::Result<Sent>> {
        let (sending, progress) = (sending.clone(), Arc::new(AtomicU64::new(0)));
        if !self.udp {
            return tokio::spawn(async move {
                let sent = http::send(sending, progress).await?;
                let behind_ms = sent.latencies.max() as f64 / 1_000.0;
                Ok(Sent { messages: sent.messages, readings: sent.readings, again: sent.again, behind_ms })
            });
        }
        tokio::task::spawn_blocking(move || {
            let rate = sending.rate.context("it has a schedule")?;
            let Sending { format, workload, connections: sockets, until, .. } = sending;
            let messages = udp::send(
                &udp::Sending { address: udp, format, workload: workload.clone(), sockets, rate, until },
                &progress,
            )?;
            let readings = messages.iter().sum::<u64>() * workload.batch;
            Ok(Sent { messages, readings, again: 0, behind_ms: 0.0 })
        })
    }

    /// Compares the rollups with the sent readings. `None` if readings were lost.
    async fn verified(&self, parts: &[(&Sending, &[u64])], lost: u64) -> anyhow::Result<Option<Verified>> {
        if self.verify == 0 || lost > 0 {
            return Ok(None);
        }
        verify::verify(parts, self.verify, self.start_ms()).await.map(Some)
    }
}

/// Waits until all readings except `pending` are stored, and days are rolled up.
async fn is_stored(server: &Server, pending: u64) -> anyhow::Result<()> {
    metrics::wait_until(&server.address, |exposition| {
        exposition.sum("tidegauge_readings_pending") <= pending as f64
            && exposition.sum("tidegauge_rollup_lag_seconds") == 0.0
    })
    .await
}

/// The results of sending.
#[derive(Debug)]
pub(crate) struct Sent {
    /// The number of messages by connection.
    messages: Vec<u64>,
    readings: u64,
    /// How often a message was refused for now and sent again.
    again: u64,
    /// The longest real time from the instant when a message was due to its answer.
    behind_ms: f64,
}
