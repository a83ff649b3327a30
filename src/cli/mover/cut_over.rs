//! Refuses a move while the service still uses the old store.
//!
//! A running service holds the lock of its data folder, and `store.json` there names the store that it writes
//! to. As long as that is the old one, the move would miss what the service stores next. A service that has
//! just started may not have noted its store yet, so the move waits some seconds for it. Two databases of
//! MongoDB have the same name in that file, so a service that still uses the old one is not noticed.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use tidegauge::store::Store;
use tokio::time::Instant;

use super::super::Usage;

/// The time for a service to note its store after a start.
const NOTED_WITHIN: Duration = Duration::from_secs(3);

const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The store of the last start.
#[derive(Deserialize)]
struct Noted {
    store: String,
    id: Option<String>,
}

/// Waits until no service in this data folder uses the old store, for some seconds. `to` is the name of the
/// new one.
pub(super) async fn expect(folder: &Path, from: &dyn Store, to: &str) -> anyhow::Result<()> {
    let until = Instant::now() + NOTED_WITHIN;
    while is_noted(folder, from, to).await? && is_in_use(folder) {
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
async fn is_noted(folder: &Path, from: &dyn Store, to: &str) -> anyhow::Result<bool> {
    let noted = std::fs::read(folder.join("store.json")).ok();
    let Some(Noted { store, id }) = noted.and_then(|bytes| serde_json::from_slice(&bytes).ok()) else {
        return Ok(false);
    };
    if store != from.name() || from.name() != to {
        return Ok(store == from.name());
    }
    let of_from = from.history().await?.map(|history| history.id);
    Ok(id.is_some() && id == of_from)
}

/// Whether a process has locked the data folder.
fn is_in_use(folder: &Path) -> bool {
    let lock = File::open(folder.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
