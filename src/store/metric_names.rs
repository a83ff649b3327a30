//! Names of metrics, read again and again.

use crate::model::Metric;

/// Shares one name between all stats of a metric. Hours tend to have the same metrics in the same order, so the name
/// after the last one is tried first.
pub(super) struct MetricNames {
    known: Vec<Metric>,
    /// Whether other names are of interest than those that were asked for.
    open: bool,
    next: usize,
}

impl MetricNames {
    pub(super) fn new(wanted: &[Metric]) -> Self {
        Self { known: wanted.to_vec(), open: wanted.is_empty(), next: 0 }
    }

    /// The shared name, unless nobody asked for it.
    pub(super) fn get(&mut self, name: &str) -> Option<Metric> {
        let is_it = |known: &Metric| &**known == name;
        let at = if self.known.get(self.next).is_some_and(is_it) {
            self.next
        } else if let Some(at) = self.known.iter().position(is_it) {
            at
        } else if self.open {
            self.known.push(name.into());
            self.known.len() - 1
        } else {
            return None;
        };
        self.next = (at + 1) % self.known.len();
        Some(self.known[at].clone())
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
