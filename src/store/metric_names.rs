//! Interned metric names: each is allocated once per query.

use crate::model::{Metric, MetricTable};

/// Shares one name between all stats of a metric, and filters metrics.
pub(super) struct MetricNames {
    known: MetricTable,
    /// Whether the query wants all metrics.
    wants_all: bool,
}

impl MetricNames {
    /// Wants the metrics `wanted`; all metrics if it is empty.
    pub(super) fn new(wanted: &[Metric]) -> Self {
        Self { known: MetricTable::new(wanted.to_vec()), wants_all: wanted.is_empty() }
    }

    /// The shared name; `None` if the query does not want the metric.
    pub(super) fn get(&mut self, name: &str) -> Option<Metric> {
        let place = if self.wants_all { self.known.place_of(name) } else { self.known.find(name)? };
        Some(self.known.metrics()[place as usize].clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_and_filtered() {
        let mut all = MetricNames::new(&[]);
        let first = all.get("a").unwrap();
        assert_eq!(all.get("b").as_deref(), Some("b"));
        assert_eq!(all.get("a").unwrap().as_ptr(), first.as_ptr(), "the text is shared");
        let mut some = MetricNames::new(&["b".into()]);
        assert_eq!(some.get("a"), None);
        assert_eq!(some.get("b").as_deref(), Some("b"));
    }
}
