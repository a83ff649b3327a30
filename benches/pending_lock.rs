//! How long the lock of pending is held: `make pending-lock`.
//!
//! Runs the log, pending, the flush to SQLite and the list of devices in one process, without HTTP, and
//! prints how long each hold of the lock took, by the clock on the wall and in processor time. On a machine
//! that does other work too, a thread may be suspended while it holds the lock; processor time leaves that
//! out. The target: 99.9 % of the holds under 1 ms, all of them under 10 ms.
//!
//! 1. The largest load of `make bench`: requests of 1,000 readings of 10,000 devices, on 4 connections.
//! 2. A million devices send their first reading, and stay pending.
//! 3. They go on sending, and two clients list them page by page.
//! 4. All of them are written to the store, and two clients list them page by page.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegauge::access::DeviceScope;
use tidegauge::common::clock::Clock;
use tidegauge::flush::bench::{Hold, take_holds};
use tidegauge::flush::{self, DeadLetters, Pipeline, Running};
use tidegauge::log::{BatchBuilder, Instruments, Log, MinFree, Sync};
use tidegauge::query::{self, DeviceSelection, DevicesRequest, Queries};
use tidegauge::store::Store;
use tidegauge::store::sqlite::SqliteStore;
use tidegauge::telemetry::Metrics;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SENDERS: u64 = 4;
const LISTERS: usize = 2;
const READINGS_PER_REQUEST: u64 = 1_000;
const DEVICES_OF_BENCH: u64 = 10_000;
const DEVICES_PENDING: u64 = 1_000_000;

/// How long the parts 1 and 3 last.
const PART: Duration = Duration::from_secs(10);

/// When the hour of all readings begins, in Unix milliseconds: 2026-04-20T14:00:00Z.
const HOUR_MS: i64 = 1_776_693_600_000;

const P999_MAX: Duration = Duration::from_millis(1);
const LONGEST_MAX: Duration = Duration::from_millis(10);

fn main() -> anyhow::Result<ExitCode> {
    println!("`{}`\n\n{}\n", std::env::args().collect::<Vec<_>>().join(" "), machine());
    println!("| part | readings | pages | holds | time | p50 | p99.9 | longest | over 1 ms | over 10 ms |");
    println!("|---|---:|---:|---:|---|---:|---:|---:|---:|---:|");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut slowest = Slowest::default();
    let good = runtime.block_on(async {
        let of_bench = Service::start(Duration::from_secs(2))?;
        let sent = of_bench.send(DEVICES_OF_BENCH, Until::Time(PART));
        let mut good = report("load of `make bench`", sent, 0, &mut slowest);
        drop(of_bench.drain().await);
        take_holds();

        let service = Service::start(Duration::from_secs(3_600))?;
        let sent = service.send(DEVICES_PENDING, Until::EachDeviceOnce);
        good &= report("a million new devices", sent, 0, &mut slowest);
        let lists = service.list();
        let sent = service.send(DEVICES_PENDING, Until::Time(PART));
        good &= report("load and lists", sent, lists.pages(), &mut slowest);
        let before = lists.pages();
        let folder = service.drain().await;
        good &= report("flush and lists", 0, lists.pages() - before, &mut slowest);
        lists.stop().await;
        drop(folder);
        anyhow::Ok(good)
    })?;
    slowest.print();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The part of the service between the log and the store.
struct Service {
    log: Arc<Log>,
    queries: Queries,
    running: Running,
    /// How many requests have been sent.
    requests: Arc<AtomicU64>,
    folder: tempfile::TempDir,
}

#[derive(Clone, Copy)]
enum Until {
    Time(Duration),
    EachDeviceOnce,
}

impl Service {
    fn start(max_age: Duration) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("pending-lock-")
            .tempdir_in(option_env!("CARGO_TARGET_TMPDIR").unwrap_or("/tmp"))?;
        let dir = folder.path();
        let log = tidegauge::log::Options {
            dir: dir.join("log"),
            sync: Sync::Always,
            group_window: Duration::ZERO,
            segment_bytes: 64 << 20,
            max_bytes: 8 << 30,
            min_free: MinFree::Bytes(0),
        };
        let (log, recovery) = Log::open(log, Instruments::default())?;
        let log = Arc::new(log);
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir.join("tidegauge.sqlite"))?);
        let options = flush::Options {
            limits: tidegauge::pending::Limits { max_bytes: 4 << 30, max_readings: 1_000, max_age },
            gather: Duration::from_secs(1),
            max_in_flight: 4,
            max_buckets_per_write: 1_000,
            max_write_bytes: 8 << 20,
            closing: flush::Closing::Daily,
            rollup_delay: Duration::from_secs(240),
            rollup_progress: dir.join("rollups.json"),
            closed_hours: dir.join("closed-hours"),
            instance: dir.join("instance"),
            retry: Duration::from_millis(100)..=Duration::from_secs(10),
            clock: Clock::system(),
        };
        let letters = DeadLetters::new(dir.join("dead-letters.ndjson"), 1 << 20, Clock::system());
        let metrics = Arc::new(Metrics::new().0);
        let pipeline = Pipeline::new(options, Arc::clone(&log), &recovery, Arc::clone(&store), letters, metrics)
            .expect("the store is not shared");
        let limits = query::Limits {
            max_hours: 24,
            max_points: 100_000,
            max_values_read: 1_000_000,
            catch_up: Duration::from_secs(1),
            timeout: Duration::from_secs(60),
            kept: None,
        };
        let queries = Queries::new(store, Arc::clone(&pipeline), limits);
        let running = pipeline.start()?;
        Ok(Self { log, queries, running, requests: Arc::default(), folder })
    }

    /// Sends readings of `devices` devices, and returns how many. Each reading is of another device than
    /// those before it, and ids come in no order.
    fn send(&self, devices: u64, until: Until) -> u64 {
        let requests_per_round = devices / READINGS_PER_REQUEST;
        let first = self.requests.load(Ordering::Relaxed).next_multiple_of(requests_per_round);
        self.requests.store(first, Ordering::Relaxed);
        let start = Instant::now();
        let is_over = |request: u64| match until {
            Until::Time(time) => start.elapsed() > time,
            Until::EachDeviceOnce => request >= first + requests_per_round,
        };
        std::thread::scope(|scope| {
            for _ in 0..SENDERS {
                scope.spawn(|| {
                    loop {
                        let request = self.requests.fetch_add(1, Ordering::Relaxed);
                        if is_over(request) {
                            return;
                        }
                        let ack = self.log.append(batch(devices, request)).expect("the log has room");
                        ack.wait().expect("the disk is sound");
                    }
                });
            }
        });
        (self.requests.load(Ordering::Relaxed) - SENDERS - first) * READINGS_PER_REQUEST
    }

    /// Lists all devices page by page, again and again.
    fn list(&self) -> Lists {
        let (pages, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let tasks = (0..LISTERS).map(|_| {
            let (queries, pages, stop) = (self.queries.clone(), Arc::clone(&pages), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut after = None;
                while !stop.load(Ordering::Relaxed) {
                    let selection = DeviceSelection::default();
                    let request = DevicesRequest { selection, after, limit: 1_000, now_ms: 0, skips_any: false };
                    let page = queries.devices(DeviceScope::all(), &request).await.expect("the store answers");
                    after = page.body.next.map(|next| next.to_string());
                    pages.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        Lists { tasks: tasks.collect(), pages, stop }
    }

    /// Writes everything to the store, and returns its folder.
    async fn drain(self) -> tempfile::TempDir {
        self.log.close();
        let drained = self.running.drain(Duration::from_secs(600)).await;
        assert_eq!(drained.left, 0, "readings stay in the log");
        self.folder
    }
}

struct Lists {
    tasks: Vec<tokio::task::JoinHandle<()>>,
    pages: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Lists {
    fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("no panic");
        }
    }
}

/// The readings of one request.
fn batch(devices: u64, request: u64) -> tidegauge::log::Batch {
    let mut builder = BatchBuilder::default();
    for reading in 0..READINGS_PER_REQUEST {
        let number = request * READINGS_PER_REQUEST + reading;
        let device = number.wrapping_mul(7_919) % devices; // a prime number, so each device once a round
        let ts_ms = HOUR_MS + (number / devices % 3_600_000) as i64;
        let id = format!("device-{device:08}");
        builder
            .push(&id, None, ts_ms, [("temp", 20.0 + (device % 32) as f64)].into_iter())
            .expect("the batch has room");
    }
    builder.finish()
}

/// Prints the holds since the last report. Returns whether they keep to the target in processor time.
fn report(part: &str, readings: u64, pages: u64, slowest: &mut Slowest) -> bool {
    let holds = take_holds();
    slowest.add(&holds);
    let mut good = true;
    for (clock, of) in [("wall", (|hold| hold.wall) as fn(&Hold) -> Duration), ("processor", |hold| hold.cpu)] {
        let mut times: Vec<Duration> = holds.iter().map(of).collect();
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let over = |limit| times.len() - times.partition_point(|time| *time <= limit);
        let (p999, longest) = (at(0.999), at(1.0));
        println!(
            "| {part} | {readings} | {pages} | {} | {clock} | {:.1?} | {p999:.1?} | {longest:.1?} | {} | {} |",
            times.len(),
            at(0.5),
            over(P999_MAX),
            over(LONGEST_MAX),
        );
        good = p999 < P999_MAX && longest < LONGEST_MAX;
    }
    good
}

/// The slowest holds of each line that takes the lock, in processor time.
#[derive(Default)]
struct Slowest(BTreeMap<String, Vec<Duration>>);

impl Slowest {
    fn add(&mut self, holds: &[Hold]) {
        for hold in holds {
            let file = Path::new(hold.place.file()).file_name().unwrap_or_default().to_string_lossy();
            self.0.entry(format!("{file}:{}", hold.place.line())).or_default().push(hold.cpu);
        }
    }

    fn print(self) {
        println!("\n| line that takes the lock | holds | p99.9 | longest, processor time |\n|---|---:|---:|---:|");
        for (line, mut times) in self.0 {
            times.sort_unstable();
            let (count, longest) = (times.len(), times[times.len() - 1]);
            println!("| {line} | {count} | {:.1?} | {longest:.1?} |", times[(count - 1) * 999 / 1_000]);
        }
    }
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    format!(
        "{cores} cores of {}, Linux {}, load average before {}",
        model.map_or("an unknown processor", |(_, model)| model),
        kernel.trim(),
        load.split(' ').next().unwrap_or("?"),
    )
}
