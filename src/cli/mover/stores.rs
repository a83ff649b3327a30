//! The two sides of a move: a store to read, and a store or another server to write.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use tidegauge::config::{Config, StoreKind};
use tidegauge::model::{Contents, Hour, SeriesFilter};
use tidegauge::store::{DeviceMetadata, HourStats, StatsNeeds, Store};
use tidegauge::telemetry::{Metrics, logs};

use super::super::Usage;
use super::super::client::parse_url;
use super::super::serve::open_store;
use super::super::settings::load_with;
use super::super::target::{HourCheck, Target, name_of, patiently, servers_of};
use super::server::Server;
use super::walk::Devices;
use super::{MoveArgs, cut_over};

/// The store that is read, and the destination.
pub(super) struct Stores {
    pub(super) from: Arc<dyn Store>,
    pub(super) to: Destination,
    /// Their names for people and for the file of the progress.
    pub(super) names: [String; 2],
    /// The file of the progress, unless the command line names another.
    pub(super) default_progress: PathBuf,
}

/// The destination of a move.
pub(super) enum Destination {
    /// A store that the service uses.
    Store(Box<Target>),
    /// Another server.
    Server(Box<Server>),
}

/// Opens both sides.
pub(super) async fn open(args: &MoveArgs) -> anyhow::Result<Stores> {
    let of_from = args.from_config.as_deref().or(args.config.as_deref());
    let from_config = load(args, of_from, ("--from", &args.from))?;
    if let Some(url) = url_of(args)? {
        logs::init(&from_config.telemetry)?;
        check_there(&from_config)?;
        let to = Server::open(&url, &args.credentials, args.max_bytes_per_second).await?;
        let (metrics, _) = Metrics::new();
        let from = open_store(&from_config, &metrics).await?;
        let history = patiently(async || from.history().await).await?;
        if history.is_some_and(|history| to.store_id.as_ref() == Some(&history.id)) {
            let store = name_of(&from_config);
            return Err(Usage(format!("{url} already has this store, {store}: name another server with --to")).into());
        }
        let (names, default_progress) = ([name_of(&from_config), url], default_progress(&from_config));
        return Ok(Stores { from, to: Destination::Server(to.into()), names, default_progress });
    }
    let config = load(args, args.config.as_deref(), ("--to", &args.to))?;
    logs::init(&config.telemetry)?;
    let names = [name_of(&from_config), name_of(&config)];
    check_apart(&from_config, &config, &names)?;
    check_there(&from_config)?;
    let (metrics, _) = Metrics::new();
    let from = open_store(&from_config, &metrics).await?;
    if !args.verify {
        cut_over::expect(&config.server.data_dir, &*from, &args.to).await?;
    }
    let default_progress = default_progress(&config);
    Ok(Stores { from, to: Destination::Store(Target::open(config).await?.into()), names, default_progress })
}

/// The file of the progress, unless the command line names another.
fn default_progress(config: &Config) -> PathBuf {
    config.server.data_dir.join("move.json")
}

/// The URL of the server to write to; `None` if it is a store.
fn url_of(args: &MoveArgs) -> anyhow::Result<Option<String>> {
    if !args.to.contains("://") {
        if args.credentials.are_given() || args.max_bytes_per_second.0 > 0 {
            let why = "--token-file, --ca-file, --client-cert and --max-bytes-per-second are for a server: give its \
                       URL with --to";
            return Err(Usage(why.to_owned()).into());
        }
        return Ok(None);
    }
    let url = parse_url(&args.to).map_err(|error| Usage(format!("--to: {error:#}")))?;
    if url.contains(['@', '?', '#']) {
        let why = "the URL after --to has no user, no \"?\" and no \"#\": name the file of the token with --token-file";
        return Err(Usage(why.to_owned()).into());
    }
    Ok(Some(url.trim_end_matches('/').to_owned()))
}

fn load(args: &MoveArgs, file: Option<&Path>, (flag, kind): (&'static str, &String)) -> anyhow::Result<Config> {
    let flags = [
        (flag, "store", "kind", Some(kind)),
        ("--data-dir", "server", "data_dir", args.data_dir.as_ref()),
        ("--mongodb-uri", "mongodb", "uri", args.mongodb_uri.as_ref()),
    ];
    Ok(load_with(file, &flags)?)
}

/// Refuses an SQLite file that does not exist, and one that this user may not see.
fn check_there(config: &Config) -> anyhow::Result<()> {
    if config.store_kind() == StoreKind::Sqlite { check_file(&config.sqlite_file()) } else { Ok(()) }
}

fn check_file(file: &Path) -> anyhow::Result<()> {
    match file.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Usage(format!("there is no {}: name its folder with --data-dir", file.display())).into()),
        Err(error) => bail!("cannot look for {}: {error}; move as the user of the service", file.display()),
    }
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

impl Destination {
    /// How many batches may be written at the same time. A server gets one request after the other.
    pub(super) fn writers(&self) -> usize {
        match self {
            Self::Store(store) => store.writers(),
            Self::Server(_) => 1,
        }
    }

    /// The first hour whose readings the new store keeps. A server refuses readings that it does not keep.
    pub(super) fn first_kept_hour(&self) -> Hour {
        match self {
            Self::Store(store) => store.first_kept_hour(),
            Self::Server(_) => Hour(i32::MIN),
        }
    }

    /// The first hour whose rollup the new store keeps.
    pub(super) fn first_kept_rollup(&self) -> Hour {
        match self {
            Self::Store(store) => store.first_kept_rollup(),
            Self::Server(_) => Hour(i32::MIN),
        }
    }

    /// The newest metadata of the devices that have some, as far as it is known.
    pub(super) async fn metadata_of(&self, devices: &[Arc<str>]) -> anyhow::Result<HashMap<Arc<str>, DeviceMetadata>> {
        // A server keeps metadata of a newer hour by itself.
        let Self::Store(to) = self else { return Ok(HashMap::new()) };
        let known = patiently(async || to.store.entries_of(devices).await).await?;
        Ok(known.devices.into_iter().filter_map(|entry| Some((entry.device, entry.metadata?))).collect())
    }

    /// The stats of devices by hour.
    pub(super) async fn hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: Range<Hour>,
    ) -> anyhow::Result<Vec<Vec<HourStats>>> {
        let (all, needs) = (&SeriesFilter::ALL, StatsNeeds::Numbers);
        match self {
            Self::Store(to) => patiently(async || to.store.hour_stats(devices, hours.clone(), all, needs).await).await,
            Self::Server(server) => server.hour_stats(devices, hours).await,
        }
    }

    /// Compares the readings of an hour one by one, and its stats with its readings. It may have more.
    pub(super) async fn check_hour(
        &self,
        device: &Arc<str>,
        hour: Hour,
        expected: &Contents,
    ) -> anyhow::Result<HourCheck> {
        match self {
            Self::Store(to) => to.check_hour(device, hour, expected).await,
            Self::Server(server) => server.check_hour(device, hour, expected).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_seen_is_not_called_missing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let check = |path: &Path| check_file(path).map_err(|error| error.to_string());
        assert!(check(&file).unwrap_err().contains("there is no"));
        std::fs::write(&file, "").unwrap();
        assert_eq!(check(&file), Ok(()));
        // Like EACCES, this is another error than that of a missing file.
        let refused = check(&file.join("tidegauge.sqlite")).unwrap_err();
        assert!(refused.contains("cannot look for") && refused.contains("as the user of the service"), "{refused}");
    }

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
