//! Refuses a move while the service still uses the old store.
//!
//! A running service holds the lock of its data folder, and `store.json` there names the store that it writes
//! to. As long as that is the old one, the move would miss what the service stores next. A service that has
//! just started may not have noted its store yet, so the move waits some seconds for it.

use std::path::Path;
use std::time::Duration;

use tidegauge::store::Store;
use tokio::time::Instant;

use super::super::known_store::KnownStore;
use super::super::target::patiently;
use super::super::{Usage, data_dir};

/// The time for a service to note its store after a start.
const NOTED_WITHIN: Duration = Duration::from_secs(3);

const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Refuses a data folder that no service has used: another service may use the old store.
pub(super) fn expect_used(folder: &Path) -> anyhow::Result<()> {
    if !matches!(data_dir::known_store(folder).try_exists(), Ok(false)) || data_dir::is_in_use(folder) {
        return Ok(());
    }
    let why = format!(
        "no service has used the data folder {}: name that of the service with --data-dir; on a machine without it, \
         name a file with --progress",
        folder.display()
    );
    Err(Usage(why).into())
}

/// Waits until no service with this data folder uses the old store.
///
/// Fails if a service still uses it after [`NOTED_WITHIN`]. `to` is the name of the new store.
pub(super) async fn expect(folder: &Path, from: &dyn Store, to: &str) -> anyhow::Result<()> {
    let until = Instant::now() + NOTED_WITHIN;
    while is_noted(folder, from, to).await? && data_dir::is_in_use(folder) {
        if Instant::now() > until {
            let (folder, store) = (folder.display(), from.name());
            let why = format!(
                "the service with the data folder {folder} still uses the old store, {store}: restart the service \
                 with the new store first, and then move"
            );
            return Err(Usage(why).into());
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Ok(())
}

/// Whether `store.json` names the old store.
///
/// If both stores have one name, such as `sqlite`, the ID in `store.json` decides.
async fn is_noted(folder: &Path, from: &dyn Store, to: &str) -> anyhow::Result<bool> {
    let noted = KnownStore::load(&data_dir::known_store(folder)).ok().flatten();
    let Some(KnownStore { store, history, .. }) = noted else { return Ok(false) };
    if store != from.name() || from.name() != to {
        return Ok(store == from.name());
    }
    let of_from = patiently(async || from.history().await).await?.map(|history| history.id);
    Ok(history.is_some_and(|history| Some(history.id) == of_from))
}
