//! Deletions: which readings of a device are removed.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

#[cfg(test)]
use super::HourOffset;
use super::{Contents, Hour, SeriesFilter};

/// Removes readings of one device: the values of some series, or of all, in a range of time.
///
/// A reading that loses all of its values is gone. A reading that keeps a value stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Deletion {
    /// The stored ID of the device.
    pub device: Arc<str>,
    /// The first instant of the range and the first instant after it, in Unix milliseconds. `None`: all
    /// instants.
    pub range_ms: Option<Range<i64>>,
    /// The series whose values are removed.
    pub series: SeriesFilter,
}

impl Deletion {
    /// The deletion of a device with everything that it has sent.
    #[cfg(test)]
    #[must_use]
    pub const fn of_device(device: Arc<str>) -> Self {
        Self { device, range_ms: None, series: SeriesFilter::ALL }
    }

    /// Whether this deletes the whole device.
    #[must_use]
    pub const fn is_of_device(&self) -> bool {
        self.range_ms.is_none() && self.series.is_all()
    }

    /// The hours that the range overlaps.
    #[must_use]
    pub fn hours(&self) -> Range<Hour> {
        match &self.range_ms {
            None => Hour::ALL,
            Some(range) => Hour::of(range.start)..Hour::at_or_after(range.end),
        }
    }

    /// Whether the range includes the whole hour.
    #[must_use]
    pub fn covers(&self, hour: Hour) -> bool {
        self.range_ms.as_ref().is_none_or(|range| range.start <= hour.start_ms() && hour.end_ms() <= range.end)
    }

    /// Whether the range includes the instant `ts_ms`, in Unix milliseconds.
    #[must_use]
    pub fn has_instant(&self, ts_ms: i64) -> bool {
        self.range_ms.as_ref().is_none_or(|range| range.contains(&ts_ms))
    }

    /// Whether the value of `series` at `offset` in `hour` is removed.
    #[cfg(test)]
    #[must_use]
    pub fn selects(&self, hour: Hour, offset: HourOffset, series: &str) -> bool {
        self.has_instant(hour.instant_ms(offset)) && self.series.matches(series)
    }

    /// Splits the contents of an hour into the values that are removed and the values that stay. Each name is
    /// compared once, and not for each of its values.
    #[must_use]
    pub fn split(&self, hour: Hour, contents: &Contents) -> (Contents, Contents) {
        let is_named: Vec<bool> = contents.metrics().iter().map(|metric| self.series.matches(metric)).collect();
        contents
            .partition(|sample| is_named[sample.metric as usize] && self.has_instant(hour.instant_ms(sample.offset)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::MS_PER_HOUR;
    use super::*;

    fn deletion(range_ms: Option<Range<i64>>, metrics: &[&str]) -> Deletion {
        let series = SeriesFilter::new(metrics.iter().copied(), [("floor", "2"), ("floor", "3")]).unwrap();
        Deletion { device: "d".into(), range_ms, series }
    }

    #[test]
    fn a_range_covers_whole_hours_and_touches_those_at_its_ends() {
        let of = deletion(Some(MS_PER_HOUR - 1..3 * MS_PER_HOUR + 1), &[]);
        assert_eq!(of.hours(), Hour(0)..Hour(4));
        assert_eq!([0, 1, 2, 3].map(|hour| of.covers(Hour(hour))), [false, true, true, false]);
        assert!(of.selects(Hour(0), 3_599_999, "a{floor=2}") && !of.selects(Hour(0), 3_599_998, "a{floor=2}"));
        assert!(of.selects(Hour(3), 0, "a{floor=3}") && !of.selects(Hour(3), 1, "a{floor=3}"));
        assert!(!of.selects(Hour(1), 0, "a{floor=4}"));
        let all = Deletion::of_device("d".into());
        assert!(all.covers(Hour(-7)) && all.is_of_device() && all.selects(Hour(8), 8, "a"));
    }

    #[test]
    fn a_deletion_comes_back_as_it_was_written() {
        let by_series = deletion(Some(-5..7), &["a", r"b{path=C:\\}"]);
        for of in [Deletion::of_device("d\"é".into()), deletion(None, &[]), by_series] {
            let text = serde_json::to_string(&of).unwrap();
            assert_eq!(serde_json::from_str::<Deletion>(&text).unwrap(), of, "{text}");
        }
    }
}
