//! The two sides of a move: a store to read, and a store to write.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use tidegauge::config::{Config, StoreKind};
use tidegauge::store::Store;
use tidegauge::telemetry::{Metrics, logs};

use super::super::Usage;
use super::super::serve::open_store;
use super::super::settings::load_with;
use super::super::target::{Target, name_of, patiently, servers_of};
use super::walk::Devices;
use super::{MoveArgs, cut_over};

/// The store that is read, and the one that is written, which the service uses.
pub(super) struct Stores {
    pub(super) from: Arc<dyn Store>,
    pub(super) to: Target,
    /// The names of both stores, for people and for the file of the progress.
    pub(super) names: [String; 2],
    /// The file of the progress, unless the command line names another.
    pub(super) default_progress: PathBuf,
}

/// Opens both stores.
pub(super) async fn open(args: &MoveArgs) -> anyhow::Result<Stores> {
    let of_from = args.from_config.as_deref().or(args.config.as_deref());
    let from_config = load(args, of_from, ("--from", &args.from))?;
    let config = load(args, args.config.as_deref(), ("--to", &args.to))?;
    logs::init(&config.telemetry)?;
    let names = [name_of(&from_config), name_of(&config)];
    check_apart(&from_config, &config, &names)?;
    if from_config.store_kind() == StoreKind::Sqlite {
        check_file(&from_config.sqlite_file())?;
    }
    let (metrics, _) = Metrics::new();
    let from = open_store(&from_config, &metrics).await?;
    expect_created(&*from, &names[0]).await?;
    if !args.verify {
        if args.progress.is_none() {
            cut_over::expect_used(&config.server.data_dir)?;
        }
        cut_over::expect(&config.server.data_dir, &*from, &args.to).await?;
    }
    let default_progress = config.server.data_dir.join("move.json");
    Ok(Stores { from, to: Target::open(config).await?, names, default_progress })
}

fn load(args: &MoveArgs, file: Option<&Path>, (flag, kind): (&'static str, &String)) -> anyhow::Result<Config> {
    let flags = [
        (flag, "store", "kind", Some(kind)),
        ("--data-dir", "server", "data_dir", args.data_dir.as_ref()),
        ("--mongodb-uri", "mongodb", "uri", args.mongodb_uri.as_ref()),
    ];
    Ok(load_with(file, &flags)?)
}

/// Refuses an SQLite file that does not exist, or that this user may not see.
fn check_file(file: &Path) -> anyhow::Result<()> {
    match file.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Usage(format!("there is no {}: name its folder with --data-dir", file.display())).into()),
        Err(error) => bail!("cannot look for {}: {error}; move as the user of the service", file.display()),
    }
}

/// Refuses a database that has none of the collections: its name may be wrong.
///
/// A database that has lost some of them has no history, but devices or an index that lacks devices.
async fn expect_created(from: &dyn Store, name: &str) -> anyhow::Result<()> {
    if patiently(async || from.history().await).await?.is_some() {
        return Ok(());
    }
    let list = patiently(async || from.entries("", None, 1).await).await?;
    if !list.devices.is_empty() || list.is_incomplete {
        return Ok(());
    }
    Err(Usage(format!("there is no store {name}: name its database with --from-config or --mongodb-uri")).into())
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
