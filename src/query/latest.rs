//! The latest values of a device.

use std::collections::BTreeMap;

use super::{Answer, Queries, QueryError, readings};
use crate::access::Reach;
use crate::model::{Hour, Metric};

/// The latest value of each metric: when, in Unix milliseconds, and how much.
pub type Latest = BTreeMap<Metric, (i64, f64)>;

impl Queries {
    /// The latest value of each metric in the newest hour of a device that has readings. `None`: it has none at all.
    ///
    /// # Errors
    /// When the device is out of reach, or the store does not answer.
    pub async fn latest(&self, reach: &Reach, device: &str) -> Result<Answer<Option<Latest>>, QueryError> {
        let device = &*reach.kept(device)?;
        let lagging = self.catch_up().await;
        let snapshot = self.flush.with_pending(|pending| {
            let hour = pending.last_hour(device)?;
            pending.hours(device, hour..Hour(hour.0 + 1)).pop()
        });
        let pending = snapshot.map(|hour| (hour.hour, hour.contents()));
        let newest_pending = pending.as_ref().map(|(hour, _)| *hour);
        let stored = async {
            let Some(hour) = self.store.last_hour(device).await?.max(newest_pending) else { return Ok(None) };
            Ok(Some((hour, self.store.contents(device, hour..Hour(hour.0 + 1), usize::MAX).await?)))
        };
        let (newest, partial) = match (self.ask(stored).await, newest_pending) {
            (Ok(newest), _) => (newest, false),
            (Err(_), Some(hour)) => (Some((hour, Vec::new())), true),
            (Err(error), None) => return Err(error.into()),
        };
        let Some((hour, stored)) = newest else { return Ok(Answer { body: None, lagging, partial }) };
        let pending = pending.iter().filter(|(pending, _)| *pending == hour);
        let mut latest = Latest::new();
        for (hour, contents) in readings::merge(stored, pending) {
            for sample in contents.samples() {
                latest.insert(contents.metric_of(sample).clone(), (hour.instant_ms(sample.offset), sample.value));
            }
        }
        Ok(Answer { body: Some(latest), lagging, partial })
    }
}
