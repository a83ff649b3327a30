//! The lookup of devices that were rejected as new and may be in the store.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;

use super::Devices;
use crate::store::Store;

/// The most devices that wait for their lookup.
///
/// Any other device is queued when it sends again.
const MAX_WAITING: usize = 10_000;

/// The number of devices of a lookup, and the interval between lookups.
///
/// Both bound the lookups to 2,000 devices a second, so that a flood of new IDs does not become a flood of
/// queries.
const BATCH_DEVICES: usize = 20;
const BATCH_INTERVAL: Duration = Duration::from_millis(10);

/// The queue of devices to look up.
#[derive(Debug)]
pub struct UnknownDeviceLookup(mpsc::Receiver<Box<str>>);

impl UnknownDeviceLookup {
    pub(super) fn new() -> (mpsc::Sender<Box<str>>, Self) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (sender, Self(receiver))
    }

    /// Looks up queued devices in the store, and marks stored devices as known.
    ///
    /// A failed lookup is not repeated before the device sends again.
    pub async fn run(mut self, devices: Arc<Devices>, store: Arc<dyn Store>) {
        let mut batch = Vec::with_capacity(BATCH_DEVICES);
        while self.0.recv_many(&mut batch, BATCH_DEVICES).await > 0 {
            let hours = join_all(batch.iter().map(|device| store.last_hour(device))).await;
            for (device, hour) in batch.drain(..).zip(hours) {
                if matches!(hour, Ok(Some(_))) {
                    devices.mark_known(&device);
                }
            }
            tokio::time::sleep(BATCH_INTERVAL).await;
        }
    }
}

#[cfg(test)]
impl UnknownDeviceLookup {
    /// The devices in the queue.
    pub(super) fn waiting(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.0.try_recv().ok()).map(String::from).collect()
    }
}
