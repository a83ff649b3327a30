//! The latest values of a device.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Answer, Queries, QueryError, blocking};
use crate::access::DeviceScope;
use crate::model::{Contents, Hour, Keep, Metric, SeriesFilter};
use crate::store::HourSamples;

/// The latest value of each metric, with its instant in Unix milliseconds.
pub type Latest = BTreeMap<Metric, (i64, f64)>;

impl Queries {
    /// Returns the latest value of each wanted series in the newest hour of a device. `None`: it has no
    /// readings.
    ///
    /// # Errors
    /// If the device is outside of the scope, the store does not answer, or the query takes too long.
    pub async fn latest(
        &self,
        scope: &DeviceScope,
        device: &str,
        series: &SeriesFilter,
    ) -> Result<Answer<Option<Latest>>, QueryError> {
        let deadline = self.deadline();
        let device = &*scope.to_stored_id(device)?;
        let lagging = self.catch_up().await;
        let pending = self.newest_pending(device).await?;
        let newest_pending = pending.as_ref().map(|(hour, _)| *hour);
        let stored = async {
            let Some(hour) = self.store.last_hour(device).await?.max(newest_pending) else { return Ok(None) };
            Ok(Some((hour, self.store.latest(device, hour).await?)))
        };
        let (newest, partial) = match (self.ask(deadline, stored).await, newest_pending) {
            (Ok(newest), _) => (newest, false),
            (Err(_), Some(hour)) => (Some((hour, Contents::default())), true),
            (Err(error), None) => return Err(error),
        };
        let Some((hour, stored)) = newest else { return Ok(Answer { body: None, lagging, partial }) };
        let pending = pending.filter(|(pending, _)| *pending == hour).map(|(_, contents)| contents);
        let mut latest = Latest::new();
        for contents in [Some(stored), pending].into_iter().flatten() {
            for sample in contents.samples() {
                let at = (hour.instant_ms(sample.offset), sample.value);
                let known = latest.entry(contents.metric_of(sample).clone()).or_insert(at);
                if at.0 > known.0 || (at.0 == known.0 && contents.keep() == Keep::Last) {
                    *known = at;
                }
            }
        }
        latest.retain(|metric, _| series.matches(metric));
        Ok(Answer { body: Some(latest), lagging, partial })
    }

    /// Returns the newest pending hour of a device, and the last sample of each metric in it.
    async fn newest_pending(&self, device: &str) -> Result<Option<(Hour, Contents)>, QueryError> {
        let (pipeline, device) = (Arc::clone(&self.pipeline), device.to_owned());
        blocking(move || {
            let hour = pipeline.with_pending(|pending| pending.last_hour(&device))?;
            let newest = pipeline.pending_hours(&device, hour..Hour(hour.0 + 1)).pop()?;
            let mut samples = HourSamples::last_of_each_metric(newest.hour);
            samples.extend(&newest.contents());
            Some((newest.hour, samples.finish().0))
        })
        .await
    }
}
