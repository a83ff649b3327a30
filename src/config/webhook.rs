//! `[[webhook]]`: paths that accept payloads of other platforms.
//!
//! The keys of a hook say where in a payload the device ID, the time and the metrics are. A preset has these
//! keys for one platform, such as `ChirpStack`. Keys of the hook itself override those of its preset one by
//! one. The files in the folder `presets` are the presets.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use strum::{EnumIter, IntoStaticStr};
use toml::{Table, Value};

use super::check::check_prefix;
use super::path_list::{Condition, NamedPath, PathList};
use super::{ConfigError, DEVICE_SEGMENT, HookPath, JsonPath, TopicTemplate};
use crate::model::{check_device_id, check_metadata_depth, check_metadata_key, check_metric_name};

/// The most entries in one key of a hook, such as `metrics` or `constants`.
const MAX_PATHS: usize = 64;

/// The most entries of `ignore`, and of `parameters`.
const MAX_NAMES: usize = 32;

/// The most entries of `device_ids`.
const MAX_DEVICE_IDS: usize = 10_000;

/// A hook: a path that accepts payloads of another platform.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// The path of the hook's URL, such as `/hooks/tts`.
    pub path: HookPath,
    /// The platform whose preset sets the keys that are not set here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// The place of the device ID, unless `path` contains `{deviceId}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DevicePlace>,
    /// A text that is put before each device ID, except replacements by `device_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_prefix: Option<String>,
    /// The place of the time. `None`: the server's clock counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimePlace>,
    /// The unit of the time, if it is a number. `None`: milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_unit: Option<TimeUnit>,
    /// The paths of the metrics in the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<PathList<NamedPath>>,
    /// The keys that a path with `*` skips.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore: Option<Vec<String>>,
    /// The paths of labels, which all metrics of the payload get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<PathList<NamedPath>>,
    /// The paths of metadata of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<PathList<NamedPath>>,
    /// Metadata that every device gets, in addition to that of the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constants: Option<Table>,
    /// Replacements of device IDs. The key is the ID that the platform sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_ids: Option<BTreeMap<String, String>>,
    /// Conditions. A payload that meets none of them is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<PathList<Condition>>,
    /// The query parameters that are ignored. Other parameters are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Vec<String>>,
}

/// A platform that has a preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, EnumIter, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Preset {
    /// The Things Stack.
    Tts,
    /// `ChirpStack` 4.
    Chirpstack,
    /// `Zigbee2MQTT`.
    Zigbee2mqtt,
    /// Tasmota.
    Tasmota,
    /// Shelly devices of the second generation and later.
    Shelly,
    /// `ThingsBoard`, as its devices write to it.
    Thingsboard,
}

/// The unit of a time that is a number: the time since 1970-01-01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
}

/// The place of the time of a reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimePlace {
    /// The server's clock. In the configuration this is an empty text.
    Clock,
    /// The value at this path of the payload.
    Body(JsonPath),
}

/// The place of the device ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DevicePlace {
    /// The value at this path of the payload.
    Body(JsonPath),
    /// The value of this query parameter. In the configuration its name follows a `?`.
    Parameter(String),
}

impl Webhook {
    /// This hook, with the keys of its preset filled in.
    #[must_use]
    pub fn with_preset(&self) -> Self {
        let Some(preset) = self.preset else { return self.clone() };
        let (own, preset) = (self.clone(), preset.keys());
        let has_segment = own.path.has_device();
        Self {
            path: own.path,
            preset: own.preset,
            device: own.device.or(preset.device.filter(|_| !has_segment)),
            device_prefix: own.device_prefix.or(preset.device_prefix),
            time: own.time.or(preset.time),
            time_unit: own.time_unit.or(preset.time_unit),
            metrics: own.metrics.or(preset.metrics),
            ignore: own.ignore.or(preset.ignore),
            labels: own.labels.or(preset.labels),
            metadata: own.metadata.or(preset.metadata),
            constants: own.constants.or(preset.constants),
            device_ids: own.device_ids.or(preset.device_ids),
            when: own.when.or(preset.when),
            parameters: own.parameters.or(preset.parameters),
        }
    }

    /// The path of the time in the payload, if it is there.
    #[must_use]
    pub fn time_path(&self) -> Option<&JsonPath> {
        match &self.time {
            Some(TimePlace::Body(path)) => Some(path),
            _ => None,
        }
    }

    /// The paths in a list; none if the key is not set.
    fn named(list: Option<&PathList<NamedPath>>) -> &[NamedPath] {
        list.map_or(&[], |list| &list.0)
    }

    /// The paths of the metrics.
    #[must_use]
    pub fn metric_paths(&self) -> &[NamedPath] {
        Self::named(self.metrics.as_ref())
    }

    /// The paths of the labels.
    #[must_use]
    pub fn label_paths(&self) -> &[NamedPath] {
        Self::named(self.labels.as_ref())
    }

    /// The paths of the metadata.
    #[must_use]
    pub fn metadata_paths(&self) -> &[NamedPath] {
        Self::named(self.metadata.as_ref())
    }

    /// The conditions of `when`.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        self.when.as_ref().map_or(&[], |list| &list.0)
    }

    /// Checks each hook, and that no two paths overlap.
    pub(super) fn check_all(hooks: &[Self]) -> Result<(), ConfigError> {
        for (place, hook) in hooks.iter().enumerate() {
            let whose = format!("(webhook {}, {})", place + 1, hook.path);
            if let Some(other) = hooks[..place].iter().find(|other| other.path.overlaps(&hook.path)) {
                let problem = format!("is the path of another webhook: {} {whose}", other.path);
                return Err(ConfigError::invalid("webhook.path", problem));
            }
            let checked = hook.with_preset().check();
            checked.map_err(|(key, problem)| ConfigError::invalid(key, format!("{problem} {whose}")))?;
        }
        Ok(())
    }

    /// Checks this hook. The keys of its preset must be filled in.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        self.check_device()?;
        if self.metric_paths().is_empty() {
            return Err(("webhook.metrics", "has no path, and neither does a preset".to_owned()));
        }
        let named = [
            ("webhook.metrics", self.metric_paths()),
            ("webhook.labels", self.label_paths()),
            ("webhook.metadata", self.metadata_paths()),
        ];
        for (key, paths) in named {
            check_names(key, paths)?;
        }
        let texts = [("webhook.ignore", &self.ignore), ("webhook.parameters", &self.parameters)];
        if let Some((key, _)) = texts.into_iter().find(|(_, texts)| texts.as_ref().is_some_and(|t| t.len() > MAX_NAMES))
        {
            return Err((key, format!("has more than {MAX_NAMES} names")));
        }
        if self.conditions().len() > MAX_PATHS {
            return Err(("webhook.when", format!("has more than {MAX_PATHS} conditions")));
        }
        for (key, path) in self.other_paths() {
            if path.has_any() {
                return Err((key, format!("is {path}, and only metrics may end with *")));
            }
        }
        self.check_tables()?;
        self.check_each()
    }

    /// Checks `constants` and `device_ids`.
    fn check_tables(&self) -> Result<(), (&'static str, String)> {
        let sizes = [
            ("webhook.constants", self.constants.as_ref().map_or(0, Table::len), MAX_PATHS),
            ("webhook.device_ids", self.device_ids.as_ref().map_or(0, BTreeMap::len), MAX_DEVICE_IDS),
        ];
        if let Some((key, _, max)) = sizes.into_iter().find(|(_, size, max)| size > max) {
            return Err((key, format!("has more than {max} keys")));
        }
        for (key, value) in self.constants.iter().flatten() {
            let checked = check_metadata_key(key, 1).map_err(|error| error.to_string());
            let checked = checked.and_then(|()| check_constant(value, 1));
            checked.map_err(|problem| ("webhook.constants", format!("has the key {key:?}: {problem}")))?;
        }
        for id in self.device_ids.iter().flat_map(BTreeMap::values) {
            check_device_id(id).map_err(|error| ("webhook.device_ids", format!("has {id:?}: {error}")))?;
        }
        Ok(())
    }

    fn check_device(&self) -> Result<(), (&'static str, String)> {
        match (&self.device, self.path.has_device()) {
            (Some(_), true) => {
                return Err(("webhook.device", format!("is set, but the path has {DEVICE_SEGMENT}")));
            }
            (None, false) => {
                let ways =
                    format!("set a path or \"?parameter\", or put the segment {DEVICE_SEGMENT} into webhook.path");
                return Err(("webhook.device", format!("is missing: {ways}")));
            }
            _ => {}
        }
        check_prefix(self.device_prefix.as_deref()).map_err(|problem| ("webhook.device_prefix", problem))
    }

    /// The path of the device ID in the payload, if it is there.
    #[must_use]
    pub fn device_path(&self) -> Option<&JsonPath> {
        match &self.device {
            Some(DevicePlace::Body(path)) => Some(path),
            _ => None,
        }
    }

    /// All paths except those of metrics, each with its configuration key.
    fn other_paths(&self) -> impl Iterator<Item = (&'static str, &JsonPath)> {
        let device = self.device_path().map(|path| ("webhook.device", path));
        let time = self.time_path().map(|path| ("webhook.time", path));
        let labels = self.label_paths().iter().map(|label| ("webhook.labels", &label.path));
        let metadata = self.metadata_paths().iter().map(|metadata| ("webhook.metadata", &metadata.path));
        let when = self.conditions().iter().map(|condition| ("webhook.when", &condition.path));
        device.into_iter().chain(time).chain(labels).chain(metadata).chain(when)
    }

    /// Checks that all paths with `[*]` name the same array.
    ///
    /// Each element of this array is a reading.
    fn check_each(&self) -> Result<(), (&'static str, String)> {
        let mut metrics = self.metric_paths().iter().map(|metric| metric.path.before_each());
        let each = metrics.next().flatten();
        if metrics.any(|other| other != each) {
            let problem = "must all have [*] behind the same array, or none of them".to_owned();
            return Err(("webhook.metrics", problem));
        }
        for (key, path) in self.other_paths() {
            if path.before_each().is_some_and(|before| Some(before) != each) {
                return Err((key, format!("is {path}, but webhook.metrics has no [*] behind that array")));
            }
        }
        // The metadata must be in the elements of the array if the device is there, and outside if all
        // elements share one device. Otherwise the log would repeat the same metadata for each element.
        let has_each = |path: &JsonPath| path.before_each().is_some();
        let of_device = self.device_path().is_some_and(has_each);
        if self.metadata_paths().iter().any(|entry| has_each(&entry.path) != of_device) {
            let problem = "must have [*] in its paths if webhook.device has it, and only then".to_owned();
            return Err(("webhook.metadata", problem));
        }
        Ok(())
    }
}

/// Checks a value in `constants`, which is `depth` levels deep.
fn check_constant(value: &Value, depth: usize) -> Result<(), String> {
    let check_depth = || check_metadata_depth(depth + 1).map_err(|error| error.to_string());
    match value {
        Value::Datetime(_) => Err("write a time as a text, in quotes".to_owned()),
        Value::Float(number) if !number.is_finite() => Err(format!("{number} is no number of JSON")),
        Value::Array(values) => {
            check_depth()?;
            values.iter().try_for_each(|value| check_constant(value, depth + 1))
        }
        Value::Table(table) => {
            check_depth()?;
            table.iter().try_for_each(|(key, value)| {
                check_metadata_key(key, depth + 1).map_err(|error| error.to_string())?;
                check_constant(value, depth + 1)
            })
        }
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Ok(()),
    }
}

/// Checks the names in a list of paths.
///
/// `key` decides whether they are names of metrics, labels or metadata.
fn check_names(key: &'static str, paths: &[NamedPath]) -> Result<(), (&'static str, String)> {
    if paths.len() > MAX_PATHS {
        return Err((key, format!("has more than {MAX_PATHS} paths")));
    }
    let is_metric = key == "webhook.metrics";
    for (place, NamedPath { name, path }) in paths.iter().enumerate() {
        if path.has_any() && name.is_some() {
            return Err((key, format!("names {path}, which has the names of its keys: write the path alone")));
        }
        if path.has_any() && is_metric {
            continue; // `check` refuses `*` in the other keys
        }
        let Some(name) = name.as_deref().or_else(|| path.last_key()) else {
            return Err((key, format!("has the path {path} without a name: write {{ name = \"{path}\" }}")));
        };
        let checked = match key {
            "webhook.metrics" => check_metric_name(name).map_err(|error| error.to_string()),
            "webhook.metadata" => check_metadata_key(name, 1).map_err(|error| error.to_string()),
            _ if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) => {
                Err("the name of a label has 1 to 64 bytes and no control characters".to_owned())
            }
            _ => Ok(()),
        };
        checked.map_err(|problem| (key, format!("has the name {name:?}: {problem}")))?;
        if paths[..place].iter().any(|other| other.name() == Some(name)) {
            return Err((key, format!("has the name {name:?} twice: write {{ name = \"path\" }} for one of them")));
        }
    }
    Ok(())
}

impl Preset {
    /// The TOML text of the preset.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Tts => include_str!("presets/tts.toml"),
            Self::Chirpstack => include_str!("presets/chirpstack.toml"),
            Self::Zigbee2mqtt => include_str!("presets/zigbee2mqtt.toml"),
            Self::Tasmota => include_str!("presets/tasmota.toml"),
            Self::Shelly => include_str!("presets/shelly.toml"),
            Self::Thingsboard => include_str!("presets/thingsboard.toml"),
        }
    }

    /// The topics to which the platform publishes at an MQTT broker.
    #[must_use]
    pub fn topics(self) -> Vec<TopicTemplate> {
        let table: Table = self.text().parse().expect("a preset is TOML");
        let topics = table["topics"].as_array().expect("a preset has topics").iter().filter_map(Value::as_str);
        topics.map(|topic| topic.parse().expect("a preset has valid topics")).collect()
    }

    /// The keys of the preset, as a hook. The path of the hook has no meaning.
    fn keys(self) -> Webhook {
        let mut table: Table = self.text().parse().expect("a preset is TOML");
        table.remove("topics");
        table.insert("path".to_owned(), Value::String("/".to_owned() + self.into()));
        table.try_into().expect("a preset has the keys of a hook")
    }
}

impl Serialize for DevicePlace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Body(path) => path.serialize(serializer),
            Self::Parameter(name) => serializer.serialize_str(&format!("?{name}")),
        }
    }
}

impl<'de> Deserialize<'de> for DevicePlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.strip_prefix('?') {
            Some("" | "partial") => Err(de::Error::custom("expected the name of a parameter behind \"?\"")),
            Some(name) => Ok(Self::Parameter(name.to_owned())),
            None => text.parse().map(Self::Body).map_err(de::Error::custom),
        }
    }
}

impl Serialize for TimePlace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Clock => serializer.serialize_str(""),
            Self::Body(path) => path.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for TimePlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() { Ok(Self::Clock) } else { text.parse().map(Self::Body).map_err(de::Error::custom) }
    }
}
