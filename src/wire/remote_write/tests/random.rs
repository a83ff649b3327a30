//! Random series against a plain model, in both versions.

use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message;

use super::super::{Options, Version, parse};
use super::{Series, in_v1, in_v2};
use crate::wire::fuzz;
use crate::wire::{Ignored, Incoming, Limits, Rejection, Sink};

/// The last value of each device, time and series, and the number of samples that are missing from it.
#[derive(Debug, Default, PartialEq)]
struct Model {
    values: BTreeMap<(String, i64, String), f64>,
    rejected: usize,
    ignored: usize,
}

impl Sink for Model {
    fn limits(&self) -> Limits {
        Limits { max_metrics: 3, max_metadata_bytes: 4_096 }
    }

    fn reading(&mut self, incoming: Incoming<'_>) {
        assert!(incoming.values.len() <= 3 && incoming.metadata.is_none());
        for (series, value) in incoming.values {
            let identity = (incoming.device.to_owned(), incoming.ts_ms.unwrap(), series.to_string());
            self.values.insert(identity, *value);
        }
    }

    fn reject(&mut self, _: Rejection) {
        self.rejected += 1;
    }

    fn reject_value(&mut self, _: Rejection) {
        self.rejected += 1;
    }

    fn ignore(&mut self, _: Ignored, _: &str) {
        self.ignored += 1;
    }
}

/// The expected values, from the samples one by one.
fn expected(all: &[Series<'_>]) -> Model {
    let mut model = Model::default();
    for (labels, samples) in all {
        let mut labels: BTreeMap<&str, &str> = labels.iter().filter(|(_, value)| !value.is_empty()).copied().collect();
        let (metric, device) = (labels.remove("__name__"), labels.remove("instance"));
        let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{}={}", escaped(key), escaped(value))).collect();
        for &(ts_ms, value) in samples {
            match (metric, device) {
                _ if !value.is_finite() => model.ignored += 1,
                (Some(metric), Some(device)) => {
                    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
                    model.values.insert((device.to_owned(), ts_ms, format!("{metric}{labels}")), value);
                }
                _ => model.rejected += 1,
            }
        }
    }
    model
}

fn escaped(text: &str) -> String {
    text.chars().flat_map(|char| r"\{},=".contains(char).then_some('\\').into_iter().chain([char])).collect()
}

fn any_label() -> impl Strategy<Value = (String, String)> {
    let key = prop_oneof![3 => "[abc]", 2 => Just("__name__".to_owned()), 2 => Just("instance".to_owned())];
    (key, "[xyz{},=\\\\ ä]{0,3}").prop_map(|(key, value)| match &*key {
        "__name__" => (key, value.replace(['{', '}'], "m")),
        _ => (key, value),
    })
}

fn any_series() -> impl Strategy<Value = (BTreeMap<String, String>, Vec<(i64, f64)>)> {
    let value = prop_oneof![4 => -1e3..1e3, 1 => any::<f64>(), 1 => Just(f64::NAN)];
    let samples = prop::collection::vec((0i64..3, value), 0..4);
    (prop::collection::btree_map("[abc]", "[xyz{},=\\\\ ä]{0,3}", 0..3), any_label(), any_label(), samples).prop_map(
        |(mut labels, first, second, samples)| {
            labels.extend([first, second]);
            (labels, samples)
        },
    )
}

proptest! {
    #[test]
    fn random_series_are_what_a_plain_model_says(all in prop::collection::vec(any_series(), 0..12)) {
        let all: Vec<Series<'_>> = all
            .iter()
            .map(|(labels, samples)| (labels.iter().map(|(key, value)| (&**key, &**value)).collect(), samples.clone()))
            .collect();
        for (version, body) in
            [(Version::V1, in_v1(&all).encode_to_vec()), (Version::V2, in_v2(&all).encode_to_vec())]
        {
            let device_labels = ["instance".to_owned()];
            let mut found = Model::default();
            let options = Options { version, device_labels: &device_labels, metadata_labels: &[] };
            parse(&body, &options, &mut found).unwrap();
            prop_assert_eq!(&found, &expected(&all), "{:?}", version);
        }
    }

    #[test]
    fn any_bytes_keep_the_promises(body in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz::remote_write_1(&body);
        fuzz::remote_write_2(&body);
    }
}
