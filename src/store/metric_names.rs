//! Names of metrics, read again and again.

use std::collections::HashMap;

use crate::model::Metric;

/// Shares one name between all stats of a metric. Hours tend to have the same metrics in the same order, so the name
/// after the last one is tried first.
pub(super) struct MetricNames {
    known: Vec<Metric>,
    places: HashMap<Metric, usize>,
    /// Whether other names are of interest than those that were asked for.
    open: bool,
    next: usize,
}

impl MetricNames {
    pub(super) fn new(wanted: &[Metric]) -> Self {
        let mut names = Self { known: Vec::new(), places: HashMap::new(), open: wanted.is_empty(), next: 0 };
        for metric in wanted {
            if !names.places.contains_key(metric) {
                names.add(metric.clone());
            }
        }
        names
    }

    /// The shared name, unless nobody asked for it.
    pub(super) fn get(&mut self, name: &str) -> Option<Metric> {
        let guess = self.known.get(self.next).is_some_and(|known| **known == *name).then_some(self.next);
        let at = match guess.or_else(|| self.places.get(name).copied()) {
            Some(at) => at,
            None if self.open => self.add(name.into()),
            None => return None,
        };
        self.next = (at + 1) % self.known.len();
        Some(self.known[at].clone())
    }

    fn add(&mut self, metric: Metric) -> usize {
        self.places.insert(metric.clone(), self.known.len());
        self.known.push(metric);
        self.known.len() - 1
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
