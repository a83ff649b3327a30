//! At a start, warns of an unexpected store. From then on, exports the size of the store.
//!
//! The data folder has a record of the store of the last start (`known_store.rs`). If the store is another
//! one, or has fewer writes, it may lack readings that the log no longer has: the store was lost, was
//! restored from a backup, or is on a volume that is not mounted. The service logs that once and continues.
//! Without the record nothing is compared.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegauge::config::{Config, StoreKind};
use tidegauge::log::Recovery;
use tidegauge::store::Store;
use tidegauge::store::sqlite;
use tidegauge::telemetry::Metrics;
use tokio::sync::watch;

use super::super::known_store::{Difference, KnownStore};

/// The interval at which the size is read and the record is saved.
const INTERVAL: Duration = Duration::from_secs(60);

/// The interval while the store is not created yet. Its first write creates it.
const UNTIL_CREATED: Duration = Duration::from_secs(1);

/// Warns of an unexpected store before the service accepts readings.
///
/// `was_there`: the SQLite file existed before this start.
pub(super) async fn compare(config: &Config, file: &Path, recovery: &Recovery, store: &dyn Store, was_there: bool) {
    let sqlite = config.sqlite_file();
    if config.store_kind() != StoreKind::Sqlite && sqlite::holds_data(&sqlite) {
        let (file, store) = (sqlite.display(), store.name());
        tracing::warn!(%file, store, "this SQLite file has readings that are not served: another store is in use");
    }
    let before = KnownStore::load(file).ok().flatten();
    if let Some(before) = before.as_ref().filter(|before| before.store != store.name()) {
        let (before, now) = (before.store.as_str(), store.name());
        tracing::warn!(before, now, "the last start used another store: its readings are not served");
        return;
    }
    if config.store_kind() != StoreKind::Sqlite {
        return; // it may be away; the roller notices if the MongoDB database is another one
    }
    let file = sqlite.display();
    let log_was_used = recovery.start.0 > 0 || recovery.readings > 0;
    if !was_there && (before.is_some() || log_was_used) {
        tracing::warn!(
            %file,
            "a new, empty store was created, though the data folder has been in use: is a volume not mounted, or was \
             the file moved or deleted?"
        );
        return;
    }
    let (Some(before), Ok(now)) = (before, store.history().await) else { return };
    match before.difference(now.as_ref()) {
        Some(Difference::Other) => tracing::warn!(
            %file,
            "this is not the SQLite file of the last start: readings of the other one are missing"
        ),
        Some(Difference::Older(missing_writes)) => tracing::warn!(
            %file,
            missing_writes,
            "this SQLite file is older than at the last start, as after a restore from a backup: readings written \
             since are missing unless they are sent again"
        ),
        None => {}
    }
}

/// Writes the record of the store in use, unless there is one.
///
/// From then on, a missing log counts as lost.
pub(super) fn note(file: &Path, store: &dyn Store) {
    if KnownStore::load(file).is_ok_and(|known| known.is_some()) {
        return;
    }
    let known = KnownStore::new(store.name(), None);
    if let Err(error) = known.save(file) {
        tracing::warn!(%error, file = %file.display(), "cannot be written: a lost log or store will not be noticed");
    }
}

/// Each minute, exports the size of the store and saves the record of the store.
///
/// The record has the ID of the store and the count of its writes. `store_id` receives the ID too. Begins at
/// once, and runs until aborted.
pub(super) async fn run(
    file: PathBuf,
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    store_id: watch::Sender<Option<String>>,
) {
    let mut saved = None;
    loop {
        match store.bytes().await {
            Ok(bytes) => metrics.store_bytes.set(bytes as f64),
            Err(error) => tracing::debug!(%error, "the size of the store is not known"),
        }
        let history = store.history().await;
        let is_created = !matches!(history, Ok(None));
        if let Ok(history) = history {
            store_id.send_replace(history.as_ref().map(|history| history.id.clone()));
            let known = KnownStore::new(store.name(), history);
            if saved.as_ref() != Some(&known) {
                match known.save(&file) {
                    Ok(()) => saved = Some(known),
                    Err(error) => tracing::debug!(%error, file = %file.display(), "cannot be written"),
                }
            }
        }
        tokio::time::sleep(if is_created { INTERVAL } else { UNTIL_CREATED }).await;
    }
}
