//! `tidegauge migrate`: turns MongoDB documents of other programs into buckets.
//!
//! These programs follow a guide to the bucket pattern.
//!
//! **Beside a running service.** The migration writes through the trait of stores, like one more instance of
//! the service (`target`). So the readings of a document join those that devices send to the same hour: each
//! reading is stored once, and a value that the service has written stays. The queries of the service find
//! buckets by `_id`. So they do not find older documents, which have other `_id`s, but they see the readings
//! of a document as soon as these are written.
//!
//! **In place.** The collection may be the collection of the service, or another collection of its database.
//! Only with `--remove`, the migration removes documents. It first reads the readings of a document back from
//! the store and compares them one by one, and it does not remove a document that has changed meanwhile.
//! Without the flag, it compares each device-hour by its stats, and one by one if these differ (`batch.rs`).
//!
//! **Strict.** A document that is not understood as a whole is left alone, counted and named (`report.rs`);
//! [`tidegauge::store::mongodb::OlderCollection`] has the shapes.
//!
//! **Bounded and resumable.** It reads pages of at most 16 MiB in the descending order of the `_id`s, writes
//! each page in batches, and saves its last `_id`. After each write it rests for as long as the write took,
//! and longer if `--rate` says so.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use tidegauge::common::clock::Clock;
use tidegauge::config::{Config, StoreKind};
use tidegauge::limits::{Limiter, Rate};
use tidegauge::store::mongodb::{DocumentId, OlderCollection, OlderContent, OlderDocument, ShapeRules};
use tidegauge::telemetry::{Metrics, logs};
use tidegauge::wire::Limits;

use self::batch::{Batch, Window};
use self::report::Report;
use super::serve::options;
use super::settings::load_with;
use super::target::{Progress, ProgressFile, Target, attended, first_kept, name_of, name_of_collection, patiently};
use super::{Usage, counted};

mod batch;
mod report;

/// The most values in a batch; a single document may exceed it.
const VALUES_PER_BATCH: u64 = 1 << 16;

/// The longest rest after a write, without `--rate`.
const MAX_REST: Duration = Duration::from_secs(1);

/// Rewrite buckets that were made after a guide to the bucket pattern of MongoDB.
#[derive(Debug, Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct MigrateArgs {
    /// The collection with the documents, in the database of the service [default: mongodb.collection]
    #[arg(long, value_name = "COLLECTION")]
    from: Option<String>,
    /// The configuration of the service [default: none, all keys have their defaults]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[arg(long, value_name = "DIR", help = "The data folder of the service [key: server.data_dir, default: ./data]")]
    data_dir: Option<String>,
    /// The store of the service, if a flag selects it there too [key: store.kind]
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// The connection string of MongoDB; a variable hides a password better [key: mongodb.uri]
    #[arg(long, value_name = "URI")]
    mongodb_uri: Option<String>,
    /// Only say what would be done, by shape, and why which documents would be left alone
    #[arg(long)]
    dry_run: bool,
    /// Remove each document once its readings are stored and were read back
    #[arg(long, conflicts_with = "dry_run")]
    remove: bool,
    /// The most readings per second, on average [default: rest after each write for as long as it took]
    #[arg(long, value_name = "READINGS", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// A field that is not read, such as location or readings.status; may be repeated
    #[arg(long, value_name = "FIELD")]
    ignore: Vec<String>,
    /// A field that becomes metadata of the device, such as location; may be repeated
    #[arg(long, value_name = "FIELD")]
    metadata: Vec<String>,
    /// Copy the readings that are understood of a document with others too; the document stays
    #[arg(long)]
    partial: bool,
    /// The file that says how far the migration is [default: migrate.json in the data folder]
    #[arg(long, value_name = "FILE")]
    progress: Option<PathBuf>,
}

const LONG_HELP: &str = "\
A document is one device and hour: deviceId or sensorId; bucket, hour or timestamp, as a date or a label in UTC such \
as \"2026-04-20-14\"; and an array of readings, { ts, value } or { minute, temp, hum }. Each number of a reading is a \
metric with the name of its field. Counts and stats are compared with the readings. docs/migrate.md has all names.

The service may be running, and devices may send to the same hours. Of two values of one reading, the one that the \
service has stored stays. Begin with --dry-run, then leave --remove out until the report is as you expect it: stop the \
program that writes the old documents, and repeat the command with --remove.

The migration may be interrupted and repeated: it continues where it was, and nothing is stored twice. Documents with \
readings older than retention.readings are left alone.

Exit status: 0 if the store has the readings of every document, 1 if documents were left alone, 64 for bad usage.";

/// The place at which an interrupted migration continues.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    /// All documents with this `_id` or a larger one are done.
    before: String,
    /// The flags that decide about documents.
    ///
    /// With other flags, the migration begins again.
    flags: String,
    /// How many documents were left alone so far.
    left: u64,
}

impl MigrateArgs {
    /// The flags that decide which documents are understood and removed, as text.
    fn that_decide(&self) -> String {
        let Self { remove, partial, ignore, metadata, .. } = self;
        format!("remove: {remove}, partial: {partial}, ignore: {ignore:?}, metadata: {metadata:?}")
    }
}

/// Migrates, and prints the report.
pub(super) async fn run(args: MigrateArgs) -> anyhow::Result<()> {
    let config = load(&args)?;
    logs::init(&config.telemetry)?;
    let from = args.from.clone().unwrap_or_else(|| config.mongodb.collection.clone());
    let older = open(&config, &from, &args).await?;
    let Some(documents) = patiently(async || older.count().await).await? else {
        let name = name_of_collection(&config, &from);
        return Err(Usage(format!("there is no collection {name}: name it with --from")).into());
    };
    let names = [format!("collection {}", name_of_collection(&config, &from)), name_of(&config)];
    let default = || config.server.data_dir.join("migrate.json");
    let migration = Migration {
        older,
        file: ProgressFile::new(args.progress.clone().unwrap_or_else(default), &names),
        rate: args.rate.and_then(|rate| Rate::new(rate, Duration::from_secs(1), Duration::from_secs(1))),
        target: if args.dry_run { None } else { Some(Target::open(config.clone()).await?) },
        config,
        args,
    };
    let mut progress = Progress::start("documents");
    progress.expect(documents);
    let mut report = Report::new(migration.args.dry_run);
    let lines = progress.lines();
    let migrating = Box::pin(async {
        let migrated = migration.run(&mut report, &mut progress).await;
        migrated.context("repeat the command to continue")
    }); // large, and run once
    let migrated = attended(&lines, migrating).await;
    progress.finish();
    write!(std::io::stdout(), "{report}")?;
    migrated?;
    match report.left_alone() {
        0 => Ok(()),
        left => bail!("{} left alone, or not compared successfully: the report says why", counted(left, "document")),
    }
}

/// Loads the configuration of the service.
fn load(args: &MigrateArgs) -> anyhow::Result<Config> {
    let flags = [
        ("--data-dir", "server", "data_dir", args.data_dir.as_ref()),
        ("--store", "store", "kind", args.store.as_ref()),
        ("--mongodb-uri", "mongodb", "uri", args.mongodb_uri.as_ref()),
    ];
    let config = load_with(args.config.as_deref(), &flags)?;
    if config.mongodb.uri.is_none() {
        let why = "there is no mongodb.uri: name the database with --config, --mongodb-uri or TIDEGAUGE_MONGODB__URI";
        return Err(Usage(why.to_owned()).into());
    }
    Ok(config)
}

/// Opens the collection with the documents.
///
/// Other collections of tidegauge are refused.
async fn open(config: &Config, from: &str, args: &MigrateArgs) -> anyhow::Result<OlderCollection> {
    let mongodb = &config.mongodb;
    let is_series = config.store_kind() == StoreKind::MongodbTimeseries && from == mongodb.timeseries.collection;
    let own = [&mongodb.rollups_collection, &mongodb.devices_collection];
    if is_series || own.into_iter().any(|own| own == from) {
        return Err(Usage(format!("{from} is a collection of the service without such documents: name another")).into());
    }
    let rules = ShapeRules {
        ignored: args.ignore.iter().cloned().collect(),
        metadata: args.metadata.iter().cloned().collect(),
        device_id_case: config.ingest.device_id_case,
        limits: Limits {
            max_metrics: config.ingest.max_metrics_per_reading,
            max_metadata_bytes: config.ingest.max_metadata_bytes.as_usize(),
        },
    };
    let (metrics, _) = Metrics::new();
    Ok(OlderCollection::connect(&options::mongodb(config, &metrics), from, rules).await?)
}

/// The range of instants that the service accepts.
fn window(config: &Config) -> Window {
    let clock = Clock::system();
    let future_ms = i64::try_from(config.ingest.max_future.as_duration().as_millis()).unwrap_or(i64::MAX);
    Window { first: first_kept(config.retention.readings, 1, &clock), end_ms: clock.now_ms().saturating_add(future_ms) }
}

/// A migration from a collection into the store.
struct Migration {
    older: OlderCollection,
    /// The store to write to. `None`: the command only says what it would do.
    target: Option<Target>,
    file: ProgressFile,
    rate: Option<Rate>,
    config: Config,
    args: MigrateArgs,
}

impl Migration {
    async fn run(&self, report: &mut Report, progress: &mut Progress) -> anyhow::Result<()> {
        let mut before = self.start(report, progress)?;
        let limiter = self.rate.map(|rate| Limiter::new(rate, Instant::now()));
        loop {
            let page = patiently(async || self.older.page(before.as_ref()).await).await?;
            let Some(last) = page.last() else { break };
            let (next, documents) = (last.id.clone(), page.len() as u64);
            let read = report.readings;
            for batch in self.batches(page, report) {
                let (started, readings) = (Instant::now(), batch.readings());
                let Some(target) = &self.target else { continue };
                batch.migrate(&self.older, target, self.args.remove, report).await?;
                rest(started, readings, limiter.as_ref()).await;
            }
            progress.add(documents, report.readings - read);
            if self.target.is_some() {
                let (before, flags) = (next.to_text(), self.args.that_decide());
                self.file.save(&Place { before, flags, left: report.left_alone() })?;
            }
            before = Some(next);
        }
        if self.target.is_some() { self.file.remove() } else { Ok(()) }
    }

    /// The `_id` below which the migration continues.
    ///
    /// `None`: it begins with the largest `_id`.
    fn start(&self, report: &mut Report, progress: &Progress) -> anyhow::Result<Option<DocumentId>> {
        if self.target.is_none() {
            return Ok(None);
        }
        let Some(Place { before, flags, left }) = self.file.load()? else { return Ok(None) };
        if flags != self.args.that_decide() {
            progress.note("the interrupted attempt had other flags: beginning again at the first document");
            return Ok(None);
        }
        let before = DocumentId::from_text(&before).context("the file of the progress is damaged: remove it")?;
        progress.note(&format!("continuing before the _id {before}"));
        report.left_before = left;
        Ok(Some(before))
    }

    /// Counts the documents of a page, and makes batches of those to be written.
    fn batches(&self, page: Vec<OlderDocument>, report: &mut Report) -> Vec<Batch> {
        let most = self.args.rate.map_or(VALUES_PER_BATCH, |rate| rate.min(VALUES_PER_BATCH));
        let (mut batches, window) = (vec![Batch::default()], window(&self.config));
        for document in page {
            let bucket = match &document.content {
                OlderContent::Own => {
                    report.own += 1;
                    continue;
                }
                OlderContent::Other(why) => {
                    report.leave(&document.id, why);
                    continue;
                }
                OlderContent::Bucket(bucket) => bucket,
            };
            let rejected = bucket.rejected.as_ref();
            let outside = window.refuses(bucket);
            let is_left = outside.is_some() || (rejected.is_some() && !self.args.partial);
            if let Some(why) = outside.as_ref().or(rejected.map(|(_, why)| why)) {
                report.leave(&document.id, why);
            }
            if is_left {
                continue;
            }
            report.count(&document.id, bucket);
            if batches.last().is_some_and(|batch| batch.values() >= most) {
                batches.push(Batch::default());
            }
            batches.last_mut().expect("at least one").push(document);
        }
        batches
    }
}

/// Rests after a write, so that the service keeps its share of the store.
async fn rest(started: Instant, readings: u64, limiter: Option<&Limiter>) {
    let mut rest = started.elapsed().min(MAX_REST);
    if let Some(limiter) = limiter {
        let now = Instant::now();
        limiter.owe(readings, now);
        rest = rest.max(limiter.wait(1, now).unwrap_or_default());
    }
    tokio::time::sleep(rest).await;
}
