//! `tidegauge move`: copies one store into another, which a running service uses already.
//!
//! **Cut-over.** The operator restarts the service with the new store, and then starts the move. So devices
//! write to the new store from the restart on, no reading is refused, and queries see the history as it
//! arrives. What was pending at the restart is in the log, and the service stores it in the new store. A
//! reading that is in both stores is stored once in the new store. If the values differ, the value of the new
//! store stays, because the service has written it later.
//!
//! **Any store to any other.** The move reads and writes through the trait of stores, like one more instance
//! of the service ([`tidegauge::store`] has the rules). It writes the rollups of closed hours itself. At the
//! end it copies the metadata that operators have set (`described.rs`), and the rollups whose readings have
//! expired (`expired.rs`). It only reads the old store.
//!
//! **Bounded.** It reads slices of some ten thousand values, and writes a few batches of them at a time
//! (`copy.rs`). After each write it rests for as long as the write took, so that the service keeps its share
//! of the store.
//!
//! **Resumable.** A file has the place up to which all readings are written (`ProgressFile`). Writing them
//! again does no harm.
//!
//! **Verified.** At the end, the move reads all readings of the old store again. It compares their counts,
//! minima, maxima and sums with the stats of the new store, for each series, device and hour. Where they
//! differ, it compares the readings one by one: the new store may have more of them, but must not lack any
//! (`verify.rs`).

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

use self::stores::{Stores, open};
use super::counted;
use super::target::{Progress, ProgressFile, attended};

mod copy;
mod cut_over;
mod described;
mod expired;
mod stores;
mod verify;
mod walk;

/// Copy all readings of one store into another, which a running service uses.
#[derive(Debug, Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct MoveArgs {
    /// The store to read: sqlite, mongodb or mongodb-timeseries
    #[arg(long, value_name = "STORE")]
    from: String,
    /// The store to write, which the service uses now
    #[arg(long, value_name = "STORE")]
    to: String,
    /// The configuration of the service [default: none, all keys have their defaults]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The configuration of the store to read [default: that of the service]
    #[arg(long, value_name = "FILE")]
    from_config: Option<PathBuf>,
    #[arg(long, value_name = "DIR", help = "The data folder of the service [key: server.data_dir, default: ./data]")]
    data_dir: Option<String>,
    /// The connection string of MongoDB; a variable hides a password better [key: mongodb.uri]
    #[arg(long, value_name = "URI")]
    mongodb_uri: Option<String>,
    /// The file that says how far the move is; if you name one, the data folder need not be that of a service
    /// [default: move.json in the data folder]
    #[arg(long, value_name = "FILE")]
    progress: Option<PathBuf>,
    /// Copy nothing, only compare
    #[arg(long)]
    verify: bool,
}

const LONG_HELP: &str = "\
First restart the service with the new store: change store.kind, or give the new store another sqlite.file, or another \
mongodb.database. It stores what is pending in the new store, and devices go on sending. Then start the move, as the \
user of the service. Until it ends, queries lack the history that is not copied yet.

Both stores are those of the configuration, with store.kind as --from and --to say. If they differ in other keys too, \
such as mongodb.layout or mongodb.database, --from-config names the configuration that the service had before.

The move may be interrupted and repeated: it continues where it was. At the end it compares the two stores. It leaves \
the old store as it is. It brings back readings that were deleted since the restart, or by a deletion that was \
answered 202 before it: repeat these deletions after the move. Metadata that a device has sent since the restart stays.

To another server, use `tidegauge export` and `tidegauge import`.

Exit status: 0 if the new store has every reading of the old store, 1 if not, 64 for bad usage.";

/// Copies and compares the stores.
pub(super) async fn run(args: MoveArgs) -> anyhow::Result<()> {
    let stores = open(&args).await?;
    let file = ProgressFile::new(args.progress.unwrap_or_else(|| stores.default_progress.clone()), &stores.names);
    let mut progress = Progress::start("devices");
    let [from, to] = &stores.names;
    progress.note(&if args.verify { format!("comparing {from} with {to}") } else { format!("moving {from} to {to}") });
    let lines = progress.lines();
    let moving = async {
        progress.expect(stores.count_devices().await?);
        let refused = if args.verify { 0 } else { copy_all(&stores, &file, &mut progress).await? };
        progress.begin("comparing");
        anyhow::Ok((refused, verify::compare(&stores, &mut progress).await?))
    };
    let moved = attended(&lines, moving).await;
    progress.finish();
    let (refused, report) = moved?;
    writeln!(std::io::stdout(), "{report}")?;
    if !args.verify {
        file.remove()?;
    }
    if refused > 0 {
        bail!("{} does not take {}", stores.names[1], counted(refused, "reading"));
    }
    if !report.is_complete() {
        bail!("{} lacks readings or rollups of the old store: repeat the move", stores.names[1]);
    }
    Ok(())
}

/// Copies the readings and then the rollups of expired readings.
///
/// Returns how many readings were refused.
async fn copy_all(stores: &Stores, file: &ProgressFile, progress: &mut Progress) -> anyhow::Result<u64> {
    let repeat = "repeat the command to continue";
    let moved = copy::readings(stores, file, file.load()?, progress).await.context(repeat)?;
    let readings = counted(moved.readings, "reading");
    progress.begin("copying the metadata that operators have set");
    let described = described::copy(stores).await.context(repeat)?;
    progress.note(&format!("copied the metadata that operators have set of {}", counted(described, "device")));
    progress.begin("copying the rollups of expired readings");
    let hours = expired::copy(stores, progress).await.context(repeat)?;
    let (hours, known) = (counted(hours, "hourly rollup"), moved.readings - moved.stored - moved.refused());
    let done =
        format!("copied {readings} and {hours} of expired readings: {} new, {known} there already", moved.stored);
    let reasons: Vec<String> = moved.refused.iter().map(|(reason, readings)| format!("{readings} {reason}")).collect();
    let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
    progress.note(&format!("{done}, {} refused{reasons}", moved.refused()));
    Ok(moved.refused())
}
