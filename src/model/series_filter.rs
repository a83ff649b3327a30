//! The filter of series: by name, by their whole text, and by label.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::prometheus::metric_name;
use super::series::{self, SeriesError};

/// Selects series of a device. Cheap to clone.
///
/// A series matches if it has one of the wanted names or texts (if there are any), for each wanted label key
/// one of the wanted values of this key, and one of the wanted names of Prometheus (if there are any).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SeriesFilter {
    /// `None`: every series matches.
    parts: Option<Arc<Parts>>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Parts {
    /// Names of metrics: `cpu` matches `cpu` and `cpu{core=0}`.
    names: BTreeSet<Box<str>>,
    /// Canonical texts of series with labels, whose names are not among `names`.
    texts: BTreeSet<Box<str>>,
    /// Labels, as the canonical text has them: `key=value`.
    labels: BTreeSet<Box<str>>,
    /// The number of different keys in `labels`. A series has each key once.
    label_keys: usize,
    /// Names of metrics in Prometheus: `a_b` matches `a_b`, `a.b` and `a b`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    prometheus_names: BTreeSet<Box<str>>,
}

/// A metric that a filter names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'f> {
    /// The series has this name, and any labels or none.
    Name(&'f str),
    /// The series has this canonical text, which has labels.
    Text(&'f str),
}

impl SeriesFilter {
    /// Matches every series.
    pub const ALL: Self = Self { parts: None };

    /// Makes a filter of series that have one of `metrics`, and the `labels`.
    ///
    /// Without `metrics`, the filter selects by labels only.
    ///
    /// A metric is a name (`cpu`: with any labels or none) or the text of one series (`cpu{core=0}`, with its
    /// labels in any order). Labels with the same key are alternatives.
    ///
    /// # Errors
    /// When a metric is neither a name nor the text of a series, or a label cannot belong to a series.
    pub fn new<'a>(
        metrics: impl IntoIterator<Item = &'a str>,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, SeriesError> {
        let mut parts = Parts::default();
        for metric in metrics {
            let text = series::canonical(metric)?;
            let of = if text.contains('{') { &mut parts.texts } else { &mut parts.names };
            of.insert(text.into());
        }
        let mut keys = BTreeSet::new();
        for (key, value) in labels {
            let mut label = String::new();
            series::append_labels(&mut label, &mut [(key, value)])?;
            parts.labels.insert(label[1..label.len() - 1].into());
            keys.insert(key);
        }
        parts.label_keys = keys.len();
        let names = &parts.names;
        parts.texts.retain(|text| !names.contains(series::metric_of(text)));
        Ok(if parts == Parts::default() { Self::ALL } else { Self { parts: Some(Arc::new(parts)) } })
    }

    /// Makes a filter of the series whose metric has one of these names in Prometheus, with any labels.
    ///
    /// Without `names`, every series matches.
    #[must_use]
    pub fn of_prometheus(names: impl IntoIterator<Item = String>) -> Self {
        let prometheus_names = names.into_iter().map(String::into_boxed_str).collect();
        Self { parts: Some(Arc::new(Parts { prometheus_names, ..Parts::default() })) }
    }

    /// Whether every series matches.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.parts.is_none()
    }

    /// Whether the series with this canonical text matches.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.parts.as_ref().is_none_or(|parts| parts.matches(text))
    }

    /// The wanted names and texts: a series that matches has exactly one of them. `None`: all are wanted.
    ///
    /// A store asks its database for these metrics, and then checks each series with [`Self::matches`].
    pub fn metrics(&self) -> Option<impl Iterator<Item = Wanted<'_>>> {
        let parts = self.parts.as_ref().filter(|parts| !parts.has_all_metrics())?;
        let names = parts.names.iter().map(|name| Wanted::Name(name));
        Some(names.chain(parts.texts.iter().map(|text| Wanted::Text(text))))
    }

    /// The texts of all series that can match.
    ///
    /// `None` if the filter does not know them all: it names a metric, which may have any labels, or no
    /// series.
    pub fn texts(&self) -> Option<impl Iterator<Item = &str>> {
        let parts = self.parts.as_ref().filter(|parts| parts.names.is_empty() && !parts.texts.is_empty())?;
        Some(parts.texts.iter().map(|text| &**text))
    }
}

impl Parts {
    fn has_all_metrics(&self) -> bool {
        self.names.is_empty() && self.texts.is_empty()
    }

    fn matches(&self, text: &str) -> bool {
        let has_metric = self.has_all_metrics()
            || self.names.contains(series::metric_of(text))
            || (!self.texts.is_empty() && self.texts.contains(text));
        has_metric && self.has_prometheus_name(text) && (self.labels.is_empty() || self.has_labels(text))
    }

    fn has_prometheus_name(&self, text: &str) -> bool {
        let names = &self.prometheus_names;
        names.is_empty() || names.contains(&*metric_name(series::metric_of(text)))
    }

    fn has_labels(&self, text: &str) -> bool {
        labels_of(text).filter(|label| self.labels.contains(*label)).count() == self.label_keys
    }
}

/// The labels in the canonical text of a series, each as `key=value`.
fn labels_of(text: &str) -> impl Iterator<Item = &str> {
    let labels = text.strip_suffix('}').and_then(|text| text.split_once('{')).map_or("", |(_, labels)| labels);
    let mut is_escaped = false;
    let ends_label = move |char| {
        let was_escaped = std::mem::take(&mut is_escaped);
        is_escaped = char == '\\' && !was_escaped;
        char == ',' && !was_escaped
    };
    labels.split(ends_label)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn filter(metrics: &[&str], labels: &[(&str, &str)]) -> SeriesFilter {
        SeriesFilter::new(metrics.iter().copied(), labels.iter().copied()).unwrap()
    }

    /// The series that match.
    fn found<'s>(filter: &SeriesFilter, series: &[&'s str]) -> Vec<&'s str> {
        series.iter().copied().filter(|series| filter.matches(series)).collect()
    }

    const CPU: &[&str] = &["cpu", "cpu{core=0}", "cpu{core=0,host=a}", "cpu{core=1,host=a}", "cpu0", "cpu0{core=0}"];

    #[test]
    fn a_name_selects_all_label_sets_of_a_metric_and_a_text_exactly_one() {
        assert_eq!(found(&filter(&[], &[]), CPU), CPU);
        assert_eq!(found(&filter(&["cpu"], &[]), CPU), CPU[..4]);
        assert_eq!(found(&filter(&["cpu{core=0}"], &[]), CPU), ["cpu{core=0}"]);
        assert_eq!(found(&filter(&["cpu{host=a,core=0}"], &[]), CPU), ["cpu{core=0,host=a}"], "in any order");
        assert_eq!(found(&filter(&["cpu0", "cpu{core=0}"], &[]), CPU), ["cpu{core=0}", "cpu0", "cpu0{core=0}"]);
        assert!(found(&filter(&["cp", "cpu{core=2}"], &[]), CPU).is_empty());
    }

    #[test]
    fn labels_narrow_and_values_of_one_key_are_alternatives() {
        assert_eq!(found(&filter(&[], &[("core", "0")]), CPU), ["cpu{core=0}", "cpu{core=0,host=a}", "cpu0{core=0}"]);
        assert_eq!(found(&filter(&["cpu"], &[("core", "0"), ("host", "a")]), CPU), ["cpu{core=0,host=a}"]);
        assert_eq!(
            found(&filter(&["cpu"], &[("core", "0"), ("core", "1"), ("core", "1"), ("host", "a")]), CPU),
            CPU[2..4]
        );
        assert!(found(&filter(&["cpu{core=0}"], &[("core", "1")]), CPU).is_empty());
        assert!(found(&filter(&[], &[("cor", "0")]), CPU).is_empty());
    }

    #[test]
    fn a_name_of_prometheus_selects_the_metrics_that_have_it_there() {
        let series = ["a_b", "a.b{k=v}", "a b", "a_b{k=v}", "a", "ab", "a_b_c"];
        let filter = SeriesFilter::of_prometheus(["a_b", "x"].map(str::to_owned));
        assert_eq!(found(&filter, &series), series[..4]);
        assert!(filter.metrics().is_none() && filter.texts().is_none() && !filter.is_all());
    }

    #[test]
    fn labels_are_compared_unescaped() {
        let paths = [r"disk{path=C:\\}", r"disk{path=C:\\,x=1}", r"disk{path=a\,x\=1}", r"disk{a\,b=\{\}}"];
        assert_eq!(found(&filter(&[], &[("path", r"C:\")]), &paths), paths[..2]);
        assert_eq!(found(&filter(&[], &[("x", "1")]), &paths), [paths[1]]);
        assert_eq!(found(&filter(&[], &[("path", "a,x=1")]), &paths), [paths[2]]);
        assert_eq!(found(&filter(&[], &[("a,b", "{}")]), &paths), [paths[3]]);
    }

    #[test]
    fn the_metrics_are_those_that_a_database_can_be_asked_for() {
        assert!(SeriesFilter::ALL.metrics().is_none() && filter(&[], &[("core", "0")]).metrics().is_none());
        let both = filter(&["b", "a{y=1,x=2}", "b", "b{x=1}"], &[("core", "0")]);
        let metrics: Vec<_> = both.metrics().unwrap().collect();
        assert_eq!(metrics, [Wanted::Name("b"), Wanted::Text("a{x=2,y=1}")], "each series at most once");
        assert!(both.texts().is_none() && SeriesFilter::ALL.texts().is_none());
        assert!(filter(&["a{x=1}", "a{x=2}"], &[]).texts().unwrap().eq(["a{x=1}", "a{x=2}"]));
    }

    #[test]
    fn what_is_no_series_is_refused() {
        for metric in ["", "a{", "a{b}", "a{}", "ts", "a{b=1,b=2}"] {
            assert!(SeriesFilter::new([metric], []).is_err(), "{metric}");
        }
        for label in [("", "a"), ("a", ""), ("a", "\n"), ("a", "\u{FF0E}")] {
            assert!(SeriesFilter::new([], [label]).is_err(), "{label:?}");
        }
    }

    type LabelSet = BTreeMap<String, String>;

    fn any_labels() -> impl Strategy<Value = LabelSet> {
        prop::collection::btree_map("[ab,=\\\\]", "[xy,=\\\\]", 0..4)
    }

    proptest! {
        #[test]
        fn a_filter_matches_what_a_plain_model_matches(
            all in prop::collection::vec(("[mn]", any_labels()), 1..20),
            names in prop::collection::vec("[mnk]", 0..2),
            exact in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
            labels in prop::collection::vec(("[ab,=\\\\]", "[xy,=\\\\]"), 0..4),
        ) {
            let text = |(name, labels): &(String, LabelSet)| {
                let mut text = String::new();
                let mut pairs: Vec<_> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
                series::write(&mut text, name, &mut pairs).map(|()| text).unwrap()
            };
            let texts: Vec<String> = all.iter().map(text).collect();
            let exact: Vec<&str> = exact.iter().map(|at| &*texts[at.index(texts.len())]).collect();
            let metrics = names.iter().map(|name| &**name).chain(exact.iter().copied());
            let pairs = labels.iter().map(|(key, value)| (&**key, &**value));
            let filter = SeriesFilter::new(metrics, pairs).unwrap();
            for ((name, of), text) in all.iter().zip(&texts) {
                let is_named = names.contains(name) || exact.contains(&&**name); // a text without labels is a name
                let has_metric = names.is_empty() && exact.is_empty() || is_named || exact.contains(&&**text);
                let has_key = |key: &String| labels.iter().any(|(k, v)| k == key && of.get(k) == Some(v));
                let expected = has_metric && labels.iter().all(|(key, _)| has_key(key));
                prop_assert_eq!(filter.matches(text), expected, "{}", text);
            }
        }
    }
}
