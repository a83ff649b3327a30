//! Copies the readings: one task reads the old store, and a few batches at a time are written.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};
use tidegauge::model::{BucketWrite, Contents, Hour};
use tidegauge::store::{DeviceMetadata, DeviceSummary};
use tokio::sync::mpsc;

use super::super::target::{self, Progress, ProgressFile, patiently, write_of};
use super::stores::Stores;
use super::walk::{Devices, END_MS, Slices};

/// The most values in a batch; a single hour may exceed it.
const VALUES_PER_BATCH: usize = 1 << 16;

/// The most buckets in a batch.
const BUCKETS_PER_BATCH: usize = 1_000;

/// The longest rest after a write.
const MAX_REST: Duration = Duration::from_secs(1);

/// The time between two saves of the progress.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// The number of refusals that are listed one by one.
const LISTED: usize = 20;

/// The counts of the copied readings.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// The readings that were read from the old store.
    pub(super) readings: u64,
    /// The readings that the new store did not have.
    pub(super) stored: u64,
    /// The readings that are refused for good, by reason.
    pub(super) refused: BTreeMap<&'static str, u64>,
}

impl Moved {
    /// The number of readings that are refused for good.
    pub(super) fn refused(&self) -> u64 {
        self.refused.values().sum()
    }

    fn refuse(&mut self, reason: &'static str, readings: u64) {
        *self.refused.entry(reason).or_default() += readings;
    }

    fn add(&mut self, other: Self) {
        self.readings += other.readings;
        self.stored += other.stored;
        other.refused.into_iter().for_each(|(reason, readings)| self.refuse(reason, readings));
    }
}

/// A place in the readings of a store.
///
/// The readings are ordered by device and then by time. All readings before the place are written: those of
/// earlier devices, and those of this device before the instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Place {
    device: Arc<str>,
    /// The instant of the place, in Unix milliseconds.
    from_ms: i64,
}

/// Writes of different buckets, which are executed together.
#[derive(Default)]
struct Batch {
    writes: Vec<Arc<BucketWrite>>,
    values: usize,
    /// The number of devices whose last readings are in this batch.
    devices: u64,
    /// The place that is reached when this batch and all earlier ones are written.
    end: Option<Place>,
}

/// Copies all readings from `start` on; without `start`, from the beginning.
pub(super) async fn readings(
    stores: &Stores,
    file: &ProgressFile,
    start: Option<Place>,
    progress: &mut Progress,
) -> anyhow::Result<Moved> {
    if let Some(Place { device, .. }) = &start {
        progress.note(&format!("continuing at the device {device}"));
    }
    let (queue, batches) = mpsc::channel(1);
    let reading = read(stores, start, queue);
    let writing = async {
        let batches = stream::unfold(batches, async |mut batches: mpsc::Receiver<Batch>| {
            batches.recv().await.map(|batch| (batch, batches))
        });
        let mut written = std::pin::pin!(batches.map(|batch| write(stores, batch)).buffered(stores.to.writers()));
        let (mut all, mut saved, mut last, mut listed) = (Moved::default(), Instant::now(), None, 0);
        while let Some(batch) = written.next().await {
            let Written { moved, devices, end, refused } = batch?;
            for why in refused.iter().take(LISTED.saturating_sub(listed)) {
                progress.note(&format!("refused: {why}"));
                listed += 1;
            }
            progress.add(devices, moved.readings);
            all.add(moved);
            last = end.or(last);
            if let Some(place) = last.as_ref().filter(|_| saved.elapsed() > SAVE_INTERVAL) {
                file.save(place)?;
                saved = Instant::now();
            }
        }
        if let Some(place) = &last {
            file.save(place)?;
        }
        anyhow::Ok(all)
    };
    let ((), moved) = tokio::try_join!(reading, writing)?;
    Ok(moved)
}

/// Reads the old store, and passes on batches.
async fn read(stores: &Stores, start: Option<Place>, queue: mpsc::Sender<Batch>) -> anyhow::Result<()> {
    let kept_ms = stores.to.first_kept_hour().start_ms();
    let mut batcher = Batcher { queue, batch: Batch::default() };
    if let Some(Place { device, from_ms }) = start.as_ref().filter(|place| place.from_ms < END_MS) {
        let of_device = [Arc::clone(device)];
        let open = patiently(async || stores.from.entries_of(&of_device).await).await?;
        read_devices(stores, open.devices, (*from_ms).max(kept_ms), &mut batcher).await?;
    }
    let mut devices = Devices::after(&*stores.from, start.map(|place| place.device.to_string()));
    while let Some(page) = devices.next_page().await? {
        read_devices(stores, page, kept_ms, &mut batcher).await?;
    }
    batcher.pass_on().await
}

/// Reads the readings of devices from an instant on.
async fn read_devices(
    stores: &Stores,
    devices: Vec<DeviceSummary>,
    from_ms: i64,
    batcher: &mut Batcher,
) -> anyhow::Result<()> {
    let ids: Vec<Arc<str>> = devices.iter().map(|entry| Arc::clone(&entry.device)).collect();
    let known = metadata_of(stores, &ids).await?;
    for entry in devices {
        let metadata = entry.metadata.as_ref().filter(|of| known.get(&entry.device).is_none_or(|is| is.hour < of.hour));
        let mut maker = Maker { entry: &entry, metadata, is_first: true };
        let mut slices = Slices::of(&*stores.from, &entry.device, entry.first_ts_ms.max(from_ms)..END_MS);
        while let Some(slice) = slices.next().await? {
            for (hour, contents) in slice {
                batcher.push(maker.write(hour, &contents)).await?;
            }
        }
        batcher.end_device(&entry.device);
    }
    Ok(())
}

/// The newest metadata of these devices in the new store.
async fn metadata_of(stores: &Stores, devices: &[Arc<str>]) -> anyhow::Result<HashMap<Arc<str>, DeviceMetadata>> {
    let known = patiently(async || stores.to.store.entries_of(devices).await).await?;
    Ok(known.devices.into_iter().filter_map(|entry| Some((entry.device, entry.metadata?))).collect())
}

/// Makes the writes of a device.
struct Maker<'a> {
    entry: &'a DeviceSummary,
    /// The metadata to write.
    ///
    /// `None` if the new store has metadata of the same or of a later hour.
    metadata: Option<&'a DeviceMetadata>,
    is_first: bool,
}

impl Maker<'_> {
    /// The write of the readings of an hour.
    ///
    /// If the new store has another value of a reading, that value stays.
    ///
    /// The first write has the metadata, and so has each write up to the hour in which the metadata was sent.
    /// Writes of later hours leave it out: there it would count as newer than it is, and replace newer
    /// metadata.
    fn write(&mut self, hour: Hour, contents: &Contents) -> BucketWrite {
        let is_first = std::mem::take(&mut self.is_first);
        let metadata = self.metadata.filter(|metadata| is_first || hour <= metadata.hour);
        let metadata = metadata.map(|metadata| Arc::clone(&metadata.text));
        let metrics = contents.metrics().iter().map(|metric| self.entry.known(metric)).collect();
        write_of(Arc::clone(&self.entry.device), hour, metadata, metrics, contents)
    }
}

/// Collects writes, and passes on full batches.
struct Batcher {
    queue: mpsc::Sender<Batch>,
    batch: Batch,
}

impl Batcher {
    async fn push(&mut self, write: BucketWrite) -> anyhow::Result<()> {
        let values = write.contents.samples().len();
        let is_full = self.batch.writes.len() >= BUCKETS_PER_BATCH || self.batch.values + values > VALUES_PER_BATCH;
        let is_same = |last: &Arc<BucketWrite>| last.device == write.device && last.hour == write.hour;
        if self.batch.writes.last().is_some_and(|last| is_full || is_same(last)) {
            self.batch.end = Some(Place { device: Arc::clone(&write.device), from_ms: write.hour.start_ms() });
            self.pass_on().await?;
        }
        self.batch.values += values;
        self.batch.writes.push(Arc::new(write));
        Ok(())
    }

    /// Notes that all readings of a device are in this batch or an earlier one.
    fn end_device(&mut self, device: &Arc<str>) {
        self.batch.devices += 1;
        self.batch.end = Some(Place { device: Arc::clone(device), from_ms: i64::MAX });
    }

    async fn pass_on(&mut self) -> anyhow::Result<()> {
        let batch = std::mem::take(&mut self.batch);
        Ok(self.queue.send(batch).await?)
    }
}

/// The result of a batch.
#[derive(Default)]
struct Written {
    moved: Moved,
    devices: u64,
    end: Option<Place>,
    /// A line for people about each refusal.
    refused: Vec<String>,
}

/// Writes a batch, with the rollups of closed hours, then rests.
async fn write(stores: &Stores, batch: Batch) -> anyhow::Result<Written> {
    let Batch { writes, devices, end, .. } = batch;
    let mut written = Written { devices, end, ..Written::default() };
    written.moved.readings = writes.iter().map(|write| u64::from(write.accepted)).sum();
    let started = Instant::now();
    let target::Outcome { stored, refused, .. } = stores.to.write(writes).await?;
    written.moved.stored = stored;
    for refused in refused {
        written.moved.refuse(refused.error.cause.as_label(), refused.readings);
        written.refused.push(refused.to_string());
    }
    tokio::time::sleep(started.elapsed().min(MAX_REST)).await;
    Ok(written)
}
