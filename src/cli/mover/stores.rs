//! The two stores of a move.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use tidegauge::common::backoff::Backoff;
use tidegauge::common::clock::Clock;
use tidegauge::config::{Config, Keep, MongodbUri, Override, StoreKind, environment};
use tidegauge::model::Hour;
use tidegauge::store::{Store, StoreError};
use tidegauge::telemetry::{Metrics, logs};
use tokio::time::Instant;

use super::super::Usage;
use super::super::serve::{newest_closed_hour, open_store};
use super::MoveArgs;
use super::walk::Devices;

/// How long a store may be away before the move ends.
const RETRY_FOR: Duration = Duration::from_secs(300);

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LAST_WAIT: Duration = Duration::from_secs(10);

/// The store that is read, and the store that is written.
pub(super) struct Stores {
    pub(super) from: Arc<dyn Store>,
    pub(super) to: Arc<dyn Store>,
    /// Their names for people and for the file of the progress.
    pub(super) names: [String; 2],
    /// The configuration of the service.
    config: Config,
    clock: Clock,
}

/// Opens both stores.
pub(super) async fn open(args: &MoveArgs) -> anyhow::Result<Stores> {
    let config = load(args, args.config.as_deref(), ("--to", &args.to))?;
    let of_from = args.from_config.as_deref().or(args.config.as_deref());
    let from_config = load(args, of_from, ("--from", &args.from))?;
    logs::init(&config.telemetry)?;
    let names = [name_of(&from_config), name_of(&config)];
    check_apart(&from_config, &config, &names)?;
    let file = from_config.sqlite_file();
    if from_config.store_kind() == StoreKind::Sqlite && !file.exists() {
        return Err(Usage(format!("there is no {}: name its folder with --data-dir", file.display())).into());
    }
    let (metrics, _) = Metrics::new();
    let from = open_store(&from_config, &metrics).await?;
    let to = open_store(&config, &metrics).await?;
    Ok(Stores { from, to, names, config, clock: Clock::system() })
}

fn load(args: &MoveArgs, file: Option<&Path>, (flag, kind): (&'static str, &String)) -> anyhow::Result<Config> {
    let given = [
        (flag, "store", "kind", Some(kind)),
        ("--data-dir", "server", "data_dir", args.data_dir.as_ref()),
        ("--mongodb-uri", "mongodb", "uri", args.mongodb_uri.as_ref()),
    ];
    let overrides = given
        .into_iter()
        .filter_map(|(flag, section, key, value)| Some(Override { flag, section, key, value: value?.clone() }));
    Ok(Config::load(file, environment()?.into_iter(), &overrides.collect::<Vec<_>>())?)
}

/// The name of a store: what tells it from others, without secrets.
fn name_of(config: &Config) -> String {
    let mongodb = &config.mongodb;
    let of_mongodb = |kind: &str, collection: &str| {
        let servers = mongodb.uri.as_ref().map_or("", servers_of);
        format!("{kind} {}.{collection} at {servers}", mongodb.database())
    };
    match config.store_kind() {
        StoreKind::Sqlite => {
            let file = config.sqlite_file();
            format!("sqlite {}", std::fs::canonicalize(&file).unwrap_or(file).display())
        }
        StoreKind::Mongodb => of_mongodb("mongodb", &mongodb.collection),
        StoreKind::MongodbTimeseries => of_mongodb("mongodb-timeseries", &mongodb.timeseries.collection),
    }
}

/// The servers that a connection string names.
fn servers_of(uri: &MongodbUri) -> &str {
    let text = uri.expose();
    let text = text.split_once("://").map_or(text, |(_, rest)| rest);
    let text = text.split(['/', '?']).next().unwrap_or_default();
    text.rsplit_once('@').map_or(text, |(_, servers)| servers)
}

/// Refuses a store as its own target, and stores that share a collection.
fn check_apart(from: &Config, to: &Config, names: &[String; 2]) -> anyhow::Result<()> {
    if names[0] == names[1] {
        return Err(Usage(format!("both stores are {}: name the old one with --from-config", names[0])).into());
    }
    let [one, other] = [from, to].map(|config| {
        let mongodb = &config.mongodb;
        let servers = mongodb.uri.as_ref().map(servers_of).unwrap_or_default();
        (servers, mongodb.database(), [&mongodb.rollups_collection, &mongodb.devices_collection])
    });
    let are_mongodb = from.store_kind().is_mongodb() && to.store_kind().is_mongodb();
    let shared = one.2.into_iter().zip(other.2).find(|(one, other)| one == other);
    if let Some((shared, _)) = shared.filter(|_| are_mongodb && (one.0, &one.1) == (other.0, &other.1)) {
        let why = format!(
            "both stores use the collection {shared} of the database {}: give the new store another mongodb.database",
            one.1
        );
        return Err(Usage(why).into());
    }
    Ok(())
}

impl Stores {
    /// The file of the progress, unless the command line names another.
    pub(super) fn default_progress(&self) -> PathBuf {
        self.config.server.data_dir.join("move.json")
    }

    /// How many batches may be written at the same time. SQLite executes one write after the other, and the
    /// service must have its turns.
    pub(super) fn writers(&self) -> usize {
        if self.config.store_kind() == StoreKind::Sqlite { 1 } else { 4 }
    }

    /// The first hour whose readings the new store keeps.
    pub(super) fn first_kept_hour(&self) -> Hour {
        self.first_kept(self.config.retention.readings, 1)
    }

    /// The first hour whose rollup the new store keeps. Rollups expire by whole days.
    pub(super) fn first_kept_rollup(&self) -> Hour {
        self.first_kept(self.config.retention.rollups(), 25)
    }

    /// The hour some hours after the first of a retention, so that it does not expire while it is compared.
    fn first_kept(&self, retention: Keep, more_hours: i32) -> Hour {
        let Some(kept) = retention.period() else { return Hour(i32::MIN) };
        let kept_ms = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
        Hour(Hour::of(self.clock.now_ms().saturating_sub(kept_ms)).0 + more_hours)
    }

    /// The newest hour that a writer has to roll up itself.
    pub(super) fn newest_closed_hour(&self) -> Hour {
        newest_closed_hour(&self.config, &self.clock)
    }

    /// The number of devices of the old store.
    pub(super) async fn count_devices(&self) -> anyhow::Result<u64> {
        let mut devices = Devices::after(&*self.from, None);
        let mut count = 0;
        while let Some(page) = devices.next_page().await? {
            count += page.len() as u64;
        }
        Ok(count)
    }
}

/// Repeats a request to a store while it fails for a reason that may pass, for at most five minutes.
pub(super) async fn patiently<T>(mut request: impl AsyncFnMut() -> Result<T, StoreError>) -> anyhow::Result<T> {
    let mut patience = Patience::new();
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(error) if error.cause.is_permanent() => return Err(error.into()),
            Err(error) => patience.wait(&error.detail).await?,
        }
    }
}

/// The waits for a store that is away.
pub(super) struct Patience {
    backoff: Backoff,
    until: Option<Instant>,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { backoff: Backoff::new(FIRST_WAIT..=LAST_WAIT), until: None }
    }

    /// Waits before the next attempt. It fails once the store has been away for too long.
    pub(super) async fn wait(&mut self, why: &str) -> anyhow::Result<()> {
        if self.until.is_none() {
            tracing::warn!(why, "a store does not answer; trying again");
        }
        if Instant::now() > *self.until.get_or_insert_with(|| Instant::now() + RETRY_FOR) {
            bail!("{why}; gave up after {RETRY_FOR:?}");
        }
        tokio::time::sleep(self.backoff.next_wait()).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(lines: &str) -> Config {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        std::fs::write(&file, lines).unwrap();
        Config::load(Some(&file), std::iter::empty(), &[]).unwrap()
    }

    fn check(one: &str, other: &str) -> Result<(), String> {
        let [from, to] = [one, other].map(config);
        let names = [name_of(&from), name_of(&to)];
        check_apart(&from, &to, &names).map_err(|error| error.to_string())
    }

    const A: &str = "[mongodb]\nuri = 'mongodb://me:secret@h:1/a?w=1'\n";
    const B: &str = "[mongodb]\nuri = 'mongodb://me:secret@h:1/b'\n";

    #[test]
    fn a_name_has_no_secret() {
        assert_eq!(name_of(&config(A)), "mongodb a.buckets at h:1");
    }

    #[test]
    fn stores_that_share_a_collection_are_refused() {
        let series = format!("{A}[store]\nkind = 'mongodb-timeseries'\n");
        let apart =
            format!("{series}[mongodb]\n").replace("[mongodb]\nuri", "[mongodb]\nrollups_collection = 'r'\nuri");
        let apart = apart.trim_end_matches("[mongodb]\n").replace("uri =", "devices_collection = 'd'\nuri =");
        assert!(check(A, A).unwrap_err().contains("both stores are mongodb a.buckets at h:1"));
        assert!(check(A, &series).unwrap_err().contains("both stores use the collection rollups"));
        assert_eq!(check(A, B), Ok(()));
        assert_eq!(check(A, &apart), Ok(()));
        assert_eq!(check("", A), Ok(()));
    }
}
