//! Interned metric names: each is allocated once per query.

use crate::model::{Metric, MetricTable, SeriesFilter};

/// Shares one name between all stats of a metric, and filters metrics.
pub(super) struct MetricNames {
    known: MetricTable,
    filter: SeriesFilter,
    /// The number of metrics of the hour that was read last. As a rule, the next hour has as many.
    pub(super) of_last_hour: usize,
}

impl MetricNames {
    /// A table that keeps the metrics that match `filter`.
    pub(super) fn new(filter: &SeriesFilter) -> Self {
        Self { known: MetricTable::default(), filter: filter.clone(), of_last_hour: 0 }
    }

    /// The shared name; `None` if the query does not want the metric.
    pub(super) fn get(&mut self, name: &str) -> Option<Metric> {
        let place = match self.known.find(name) {
            Some(place) => place,
            None if self.filter.matches(name) => self.known.place_of(name),
            None => return None,
        };
        Some(self.known.metrics()[place as usize].clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_and_filtered() {
        let mut all = MetricNames::new(&SeriesFilter::ALL);
        let first = all.get("a").unwrap();
        assert_eq!(all.get("b").as_deref(), Some("b"));
        assert_eq!(all.get("a").unwrap().as_ptr(), first.as_ptr(), "the text is shared");
        let mut some = MetricNames::new(&SeriesFilter::new(["b"], []).unwrap());
        assert_eq!(some.get("a"), None);
        assert_eq!(some.get("b").as_deref(), Some("b"));
    }
}
