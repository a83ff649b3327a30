//! `tidegauge check --rebuild-device-index`: derives the device index of a MongoDB database again.

use std::io::Write;

use anyhow::ensure;
use tidegauge::config::{Config, StoreKind};
use tidegauge::store::Store;
use tidegauge::store::mongodb::{BucketStore, TimeseriesStore};
use tidegauge::telemetry::Metrics;

use crate::cli::counted;
use crate::cli::serve::options;
use crate::cli::target;

/// Lets the store derive its device index again, and prints the number of devices.
pub(super) async fn rebuild(config: &Config, out: &mut impl Write) -> anyhow::Result<()> {
    let kind = config.store_kind();
    ensure!(kind.is_mongodb(), "the device index of an SQLite file is a part of the file: there is nothing to rebuild");
    let (metrics, _) = Metrics::new();
    let options = options::mongodb(config, &metrics);
    let store: Box<dyn Store> = if kind == StoreKind::Mongodb {
        Box::new(BucketStore::connect(options).await?)
    } else {
        Box::new(TimeseriesStore::connect(options, config.mongodb.timeseries.clone()).await?)
    };
    let devices = store.rebuild_device_index().await?;
    writeln!(out, "the device index of {} has all devices: {}", target::name_of(config), counted(devices, "device"))?;
    Ok(())
}
