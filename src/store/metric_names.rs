//! Names of metrics, read again and again.

use crate::model::{Metric, MetricTable};

/// Shares one name between all stats of a metric.
pub(super) struct MetricNames {
    known: MetricTable,
    /// Whether other names are of interest than those that were asked for.
    open: bool,
}

impl MetricNames {
    pub(super) fn new(wanted: &[Metric]) -> Self {
        Self { known: MetricTable::new(wanted.to_vec()), open: wanted.is_empty() }
    }

    /// The shared name, unless nobody asked for it.
    pub(super) fn get(&mut self, name: &str) -> Option<Metric> {
        let place = if self.open { self.known.place_of(name) } else { self.known.find(name)? };
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
        assert!(Metric::ptr_eq(&all.get("a").unwrap(), &first));
        let mut some = MetricNames::new(&["b".into()]);
        assert_eq!(some.get("a"), None);
        assert_eq!(some.get("b").as_deref(), Some("b"));
    }
}
