//! Devices that were refused as new, and may be stored all the same.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;

use super::Devices;
use crate::store::Store;

/// How many wait to be looked up. Further ones have to come again.
const MAX_WAITING: usize = 10_000;

/// How many are looked up at once, and the pause between: the store is asked about at most 2,000 devices a
/// second, so that a flood of new ids does not become a flood of questions.
const AT_ONCE: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Devices that wait to be looked up.
#[derive(Debug)]
pub struct UnknownDeviceLookup(mpsc::Receiver<Box<str>>);

impl UnknownDeviceLookup {
    pub(super) fn new() -> (mpsc::Sender<Box<str>>, Self) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (sender, Self(receiver))
    }

    /// Looks them up in the store as they come. Those that are stored are known from then on. What the store
    /// does not answer has to come again.
    pub async fn look_up(mut self, devices: Arc<Devices>, store: Arc<dyn Store>) {
        let mut waiting = Vec::with_capacity(AT_ONCE);
        while self.0.recv_many(&mut waiting, AT_ONCE).await > 0 {
            let hours = join_all(waiting.iter().map(|device| store.last_hour(device))).await;
            for (device, hour) in waiting.drain(..).zip(hours) {
                if matches!(hour, Ok(Some(_))) {
                    devices.introduce(&device);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
impl UnknownDeviceLookup {
    /// Those that wait now.
    pub(super) fn waiting(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.0.try_recv().ok()).map(String::from).collect()
    }
}
