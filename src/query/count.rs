//! The number of readings that a deletion would remove.

use super::{DeviceSelection, DevicesRequest, Queries, QueryError, ReadingsRequest};
use crate::access::DeviceScope;
use crate::model::{MS_PER_HOUR, SeriesFilter};

/// The most readings of a page. They are in memory at the same time.
const PAGE: usize = 10_000;

impl Queries {
    /// Counts the readings of a device that have a value of `series`.
    ///
    /// `range_ms` has the instants that count, in Unix milliseconds; `None`: all. The readings are read page
    /// by page, each page with a deadline of its own.
    ///
    /// # Errors
    /// If the device is outside of the scope, something may be missing, or a page takes too long.
    pub async fn count_readings(
        &self,
        scope: &DeviceScope,
        device: &str,
        range_ms: Option<std::ops::Range<i64>>,
        series: &SeriesFilter,
        now_ms: i64,
    ) -> Result<u64, QueryError> {
        scope.to_stored_id(device)?;
        let selection = DeviceSelection { ids: Some(vec![device.into()]), ..DeviceSelection::default() };
        let request = DevicesRequest { selection, after: None, limit: 1, now_ms, skips_any: false };
        let found = self.devices(scope, &request).await?.complete()?.devices;
        let Some(known) = found.first() else { return Ok(0) };
        let range_ms = range_ms.unwrap_or(i64::MIN..i64::MAX);
        let mut from_ms = range_ms.start.max(known.first_ts_ms);
        let end_ms = range_ms.end.min(known.last_ts_ms + 1);
        let most_ms = i64::from(self.limits.max_hours.max(2) - 1) * MS_PER_HOUR;
        let mut count = 0;
        while from_ms < end_ms {
            let to_ms = end_ms.min(from_ms + most_ms);
            let (device, series) = (device.to_owned(), series.clone());
            let page = self.readings(scope, &ReadingsRequest { device, from_ms, to_ms, series, limit: PAGE }).await?;
            let page = page.complete()?;
            count += page.readings.len() as u64;
            from_ms = page.next_ms.unwrap_or(to_ms);
        }
        Ok(count)
    }
}
