//! What is odd about the store at a start, and how large it is from then on.
//!
//! The file `store.json` in the data folder says which store the last start used, and how much had been
//! written to it:
//!
//! ```json
//! {"store":"sqlite","id":"0f3a…","writes":1234}
//! ```
//! A store that is another one, or has seen fewer writes, is not the one that the log was cut behind: it was
//! lost, restored from a backup, or stands on a volume that is not mounted. That is said once, and the
//! service goes on. The file is written behind the store, so it never speaks of a write that is not there;
//! without it nothing is compared.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegauge::config::{Config, StoreKind};
use tidegauge::disk::replace_file;
use tidegauge::log::Recovery;
use tidegauge::store::sqlite::SqliteStore;
use tidegauge::store::{History, Store};
use tidegauge::telemetry::Metrics;

/// How often the size is looked up and the file is written.
const INTERVAL: Duration = Duration::from_secs(60);

/// What the file says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Known {
    store: String,
    #[serde(flatten)]
    history: Option<History>,
}

/// Warns of what is odd, before the service takes readings. `was_there`: the SQLite file was not made by this
/// start.
pub(super) async fn compare(config: &Config, file: &Path, recovery: &Recovery, store: &dyn Store, was_there: bool) {
    let sqlite = config.sqlite_file();
    if config.store_kind() != StoreKind::Sqlite && SqliteStore::holds_data(&sqlite) {
        let (file, store) = (sqlite.display(), store.name());
        tracing::warn!(%file, store, "this SQLite file holds readings that are not served: they are in another store");
    }
    let before: Option<Known> = std::fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if let Some(before) = before.as_ref().filter(|before| before.store != store.name()) {
        let (before, now) = (before.store.as_str(), store.name());
        tracing::warn!(before, now, "the last start used another store: what is stored there is not served");
        return;
    }
    if config.store_kind() != StoreKind::Sqlite {
        return; // whether a database of MongoDB is another one shows when rollups are looked at
    }
    let file = sqlite.display();
    let log_was_used = recovery.start.0 > 0 || recovery.readings > 0;
    if !was_there && (before.is_some() || log_was_used) {
        tracing::warn!(
            %file,
            "a new, empty store was made, though the data folder has been in use: is a volume not mounted, or was the file \
             moved or deleted?"
        );
        return;
    }
    let (Some(before), Ok(Some(now))) = (before.and_then(|before| before.history), store.history().await) else {
        return;
    };
    if before.id != now.id {
        tracing::warn!(%file, "this is not the SQLite file of the last start: readings that only the other one has are missing");
    } else if now.writes < before.writes {
        tracing::warn!(
            %file,
            missing_writes = before.writes - now.writes,
            "this SQLite file is older than at the last start, as one restored from a backup is: what was written since is \
             missing unless it is sent again"
        );
    }
}

/// Looks the size of the store up, and writes down how much has been written to it, now and each minute. Runs
/// until it is aborted.
pub(super) async fn run(file: PathBuf, store: Arc<dyn Store>, metrics: Arc<Metrics>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        match store.bytes().await {
            Ok(bytes) => metrics.store_bytes.set(bytes as f64),
            Err(error) => tracing::debug!(%error, "the size of the store is not known"),
        }
        let Ok(history) = store.history().await else { continue };
        if let Err(error) = save(&file, &Known { store: store.name().to_owned(), history }) {
            tracing::debug!(%error, file = %file.display(), "cannot be written");
        }
    }
}

fn save(file: &Path, known: &Known) -> std::io::Result<()> {
    replace_file(file, &serde_json::to_vec(known)?)
}
