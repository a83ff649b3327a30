//! Turns the series of the device index into series of InfluxQL.
//!
//! A series of InfluxQL belongs to a measurement, and has tags and fields.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::index::name_of;
use crate::common::work;
use crate::config::LineProtocol;
use crate::influxql::{Aliases, Series, StatementError, mapping};
use crate::model::{Metric, series};
use crate::query::Device;

/// The prefix of the tag of a label whose key is the key of a device tag.
///
/// The label `device_id` becomes the tag `label.device_id`, because the tag `device_id` is the device ID.
const LABEL: &str = "label.";

type Tags = Vec<(Arc<str>, Arc<str>)>;

/// A series, and the place of its values.
#[derive(Debug)]
pub(super) struct Indexed {
    pub(super) series: Series,
    pub(super) place: Place,
}

/// The place of the values of a series: a device and its metrics.
#[derive(Debug)]
pub(super) struct Place {
    /// The client ID of the device.
    pub(super) device: Arc<str>,
    /// The number of all metrics of the device; `usize::MAX` if the index lacks some.
    pub(super) metric_count: usize,
    /// The metrics of the fields of the series, in the order of the fields.
    pub(super) metrics: Vec<Metric>,
    /// A range that includes all readings of the device, in Unix milliseconds.
    pub(super) span_ms: Range<i64>,
}

/// The rules by which devices, labels and metadata become tags.
#[derive(Debug)]
pub(super) struct Catalogue {
    device_tag: Arc<str>,
    /// The tag in which line protocol looks for a device ID first.
    ///
    /// A reading with this tag has it as the device ID, so no label has this key.
    first_tag: Arc<str>,
    aliases: Arc<Aliases>,
}

impl Catalogue {
    pub(super) fn new(line_protocol: &LineProtocol) -> Self {
        let names = &line_protocol.device_tags;
        let device_tag = mapping::device_tag(names);
        let others = names.iter().filter(|name| *name != device_tag).cloned().collect();
        let aliases = Arc::new(Aliases { key: device_tag.to_owned(), others });
        let first_tag = names.first().map_or(device_tag, |name| name);
        Self { device_tag: device_tag.into(), first_tag: first_tag.into(), aliases }
    }

    /// Whether the tag `tag` is the device ID in every series.
    pub(super) fn is_of_device(&self, tag: &str) -> bool {
        *self.device_tag == *tag || *self.first_tag == *tag
    }

    /// Whether the tag `tag` is the device ID in every series that has no label of this key.
    ///
    /// Metadata with such a key is no tag. Otherwise a device could have another device's ID as a tag.
    fn may_name_device(&self, tag: &str) -> bool {
        *self.device_tag == *tag || self.aliases.others.iter().any(|other| other == tag)
    }

    /// Returns the series of a device, each with its measurement.
    ///
    /// `is_meant` chooses the measurements, and may fail. The keys of the series are 0; the caller sets them.
    pub(super) fn series_of(
        &self,
        device: &Device,
        mut is_meant: impl FnMut(&str) -> Result<bool, StatementError>,
    ) -> Result<Vec<(Arc<str>, Indexed)>, StatementError> {
        let mut by_tags: BTreeMap<(&str, series::Labels<'_>), BTreeMap<&str, Metric>> = BTreeMap::new();
        // Metrics are sorted, so those of one measurement mostly follow each other.
        let mut last: Option<(&str, bool)> = None;
        for metric in &device.metrics {
            work::count(1);
            let (name, _) = mapping::split(name_of(metric), metric.measurement());
            let is_wanted = match last {
                Some((before, is_wanted)) if before == name => is_wanted,
                _ => is_meant(name)?,
            };
            last = Some((name, is_wanted));
            if !is_wanted {
                continue;
            }
            let Ok(parsed) = series::Series::parse(metric) else { continue };
            let (measurement, field) = mapping::split(parsed.metric, metric.measurement());
            by_tags.entry((measurement, parsed.labels)).or_default().entry(field).or_insert_with(|| metric.clone());
        }
        if by_tags.is_empty() {
            return Ok(Vec::new());
        }
        let mut metadata = tags_of(device.metadata.as_deref());
        metadata.retain(|(key, _)| !self.may_name_device(key));
        let span_ms = device.span_ms();
        let metric_count = if device.has_more_metrics { usize::MAX } else { device.metrics.len() };
        let found = by_tags.into_iter().map(|((measurement, labels), fields)| {
            let mut tags: BTreeMap<Arc<str>, Arc<str>> = metadata.iter().cloned().collect();
            for (key, value) in &labels {
                let is_taken = self.is_of_device(key);
                let key = if is_taken { format!("{LABEL}{key}").into() } else { Arc::from(&**key) };
                tags.insert(key, Arc::from(&**value));
            }
            tags.insert(Arc::clone(&self.device_tag), Arc::clone(&device.id));
            let (fields, metrics) = fields.into_iter().map(|(field, metric)| (Arc::from(field), metric)).unzip();
            let aliases = Arc::clone(&self.aliases);
            let series = Series { key: 0, tags: tags.into_iter().collect(), fields, aliases };
            let place = Place { device: Arc::clone(&device.id), metric_count, metrics, span_ms: span_ms.clone() };
            (Arc::from(measurement), Indexed { series, place })
        });
        Ok(found.collect())
    }
}

impl Place {
    /// Estimates the memory that a series and its place take, in bytes.
    pub(super) fn bytes(&self, series: &Series) -> usize {
        const OF_SERIES: usize = 256;
        const OF_TAG: usize = 64;
        const OF_FIELD: usize = 96;
        OF_SERIES + series.tags.len() * OF_TAG + self.metrics.len() * OF_FIELD
    }
}

/// Turns the texts, numbers and booleans of metadata into tags.
fn tags_of(metadata: Option<&str>) -> Tags {
    let metadata: Map<String, Value> =
        metadata.and_then(|metadata| serde_json::from_str(metadata).ok()).unwrap_or_default();
    let text = |value: Value| match value {
        Value::String(text) if !text.is_empty() => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    };
    metadata.into_iter().filter_map(|(key, value)| Some((key.into(), text(value)?.into()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(metrics: Vec<Metric>) -> Device {
        let metadata = r#"{"room": "hall", "floor": 2, "lit": true, "empty": "", "at": {"x": 1}, "cpu": "m",
            "device_id": "n", "deviceId": "o", "host": "p"}"#;
        Device {
            id: "S1".into(),
            metadata: Some(metadata.into()),
            metrics,
            has_more_metrics: false,
            first_ts_ms: 5,
            last_ts_ms: 86_400_000,
        }
    }

    fn keys(catalogue: &Catalogue, device: &Device, only: Option<&str>) -> Vec<String> {
        let found = catalogue.series_of(device, |name| Ok(only.is_none_or(|only| only == name)));
        let found = found.unwrap().into_iter().map(|(measurement, found)| {
            let tags = found.series.tags.iter().map(|(key, value)| format!(",{key}={value}"));
            format!("{measurement}{} {}", tags.collect::<String>(), found.series.fields.join(" "))
        });
        found.collect()
    }

    #[test]
    fn metrics_become_fields_and_labels_and_metadata_tags() {
        let catalogue = Catalogue::new(&LineProtocol::default());
        let of = Metric::of_measurement;
        let device = device(vec![
            of("cpu_idle{cpu=cpu0}", 3),
            of("cpu_user{cpu=cpu0}", 3),
            of("cpu_idle{cpu=cpu1}", 3),
            of("cpu_load", 0),
            of("cpu", 0),
            of("temp{device_id=x,deviceId=z,host=y}", 0),
        ]);
        let metadata = "device_id=S1,floor=2,lit=true,room=hall";
        let all = keys(&catalogue, &device, None);
        assert_eq!(
            all,
            [
                &format!("cpu,cpu=m,{metadata} value"),
                &format!("cpu,cpu=cpu0,{metadata} idle user"),
                &format!("cpu,cpu=cpu1,{metadata} idle"),
                &format!("cpu_load,cpu=m,{metadata} value"),
                "temp,cpu=m,device_id=S1,floor=2,host=y,label.deviceId=z,label.device_id=x,lit=true,room=hall value",
            ]
        );
        assert_eq!(keys(&catalogue, &device, Some("cpu")), all[..3]);
        let (_, temp) = catalogue.series_of(&device, |name| Ok(name == "temp")).unwrap().remove(0);
        assert_eq!(["host", "device_id", "deviceId", "nope"].map(|key| temp.series.tag(key)), ["y", "S1", "S1", ""]);
        let (_, load) = catalogue.series_of(&device, |name| Ok(name == "cpu_load")).unwrap().remove(0);
        assert_eq!(["host", "device", "cpu"].map(|key| load.series.tag(key)), ["S1", "S1", "m"]);
        assert_eq!(temp.place.span_ms, 5..2 * 86_400_000);
    }

    #[test]
    fn metrics_of_one_measurement_are_chosen_together() {
        let catalogue = Catalogue::new(&LineProtocol::default());
        let of = Metric::of_measurement;
        let device = device(vec![of("cpu_idle{cpu=a}", 3), of("cpu_idle{cpu=b}", 3), of("cpu_user", 3), of("disk", 0)]);
        let mut names = Vec::new();
        let found = catalogue.series_of(&device, |name| {
            names.push(name.to_owned());
            Ok(name == "cpu")
        });
        assert_eq!(found.unwrap().len(), 3);
        assert_eq!(names, ["cpu", "disk"]);
        let error = catalogue.series_of(&device, |_| Err("it is late".into())).unwrap_err();
        assert_eq!(error.to_string(), "it is late");
    }
}
