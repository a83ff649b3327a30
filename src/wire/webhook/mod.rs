//! Payloads of other platforms: JSON of any form. The configuration has the paths to the parts of a reading.
//!
//! A [`Hook`] is compiled from a [`Webhook`] of the configuration: paths to the device, the time, the
//! metrics, labels and metadata. A payload is one reading. If a path has `[*]`, each element of the array
//! there is a reading. A value that is not an array counts as its only element.
//!
//! - `*` selects every number and boolean below it, at any depth; the names are the dotted paths from there.
//!   Texts and arrays below it are ignored and counted, `null` is absent. If a value is below several `*`,
//!   the first `*` of the configuration names it. A value that another path takes is not a metric.
//! - Any other path of a metric selects one number or boolean. Any other value there is rejected.
//! - The device is a text or a whole number; the time RFC 3339, or a number in the unit of the hook. A table
//!   of the hook may have another ID for a device.
//! - A payload that meets none of the conditions of the hook, or whose array behind `[*]` is empty, is
//!   ignored and counted.
//!
//! The parser reads the body once, front to back, along a tree of the paths (`tree`). It skips the array of
//! `[*]`, and reads it when it knows what all elements share. The device, the time, and each metric and label
//! may occur once. So may each key of an object on the way to them and below `*`.

mod found;
mod time;
mod tree;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use self::tree::{Role, Tree};
use self::walk::Walk;
use super::Sink;
use super::json::{SyntaxError, lexer::Lexer};
use crate::config::{Condition, DEVICE_SEGMENT, DevicePlace, JsonPath, NamedPath, TimeUnit, Webhook};

/// The parts of readings that are in a payload's URL or in the topic of a message.
#[derive(Debug, Clone, Copy, Default)]
pub struct Address<'a> {
    /// The device, for hooks whose device is not in the payload.
    pub device: Option<&'a str>,
    /// The metric that the address names.
    ///
    /// It is the name of the value `value`, and the prefix of all other names: with `m`, `value` becomes `m`,
    /// and `t` becomes `m.t`.
    pub metric: Option<&'a str>,
    /// The labels of all metrics.
    pub labels: &'a [(&'a str, &'a str)],
    /// The metadata of the device.
    ///
    /// Constants of the hook and keys of the payload take precedence.
    pub metadata: &'a [(&'a str, &'a str)],
}

impl<'a> Address<'a> {
    /// An address that names the device, or nothing.
    #[must_use]
    pub fn of(device: Option<&'a str>) -> Self {
        Self { device, ..Self::default() }
    }
}

/// A compiled hook.
#[derive(Debug)]
pub struct Hook {
    tree: Tree,
    /// The place of the device, for messages.
    device_place: String,
    device_prefix: String,
    time_unit: TimeUnit,
    /// The path of the first metric, or the array behind `[*]`, for messages.
    metric_place: String,
    /// The names of the metrics whose paths have no `*`, by the place of the path.
    metric_names: Vec<String>,
    /// The keys below `*` that are no metrics.
    ignored_keys: Vec<String>,
    label_names: Vec<String>,
    /// The keys of the metadata in the payload, as JSON strings.
    metadata_keys: Vec<String>,
    /// The constant metadata: keys and values as JSON.
    constants: Vec<(String, String)>,
    /// The device IDs that replace IDs of the platform.
    device_ids: BTreeMap<String, String>,
    conditions: Vec<Condition>,
    /// Whether all elements of the array behind `[*]` share device and metadata.
    is_owner_shared: bool,
}

impl Hook {
    /// Compiles a hook. It must be valid, as loading the configuration has checked.
    #[must_use]
    pub fn new(hook: &Webhook) -> Self {
        let hook = hook.with_preset();
        let names = |paths: &[NamedPath]| paths.iter().map(|path| path.name().unwrap_or_default().to_owned()).collect();
        let mut tree = Tree::default();
        let device = hook.device_path();
        if let Some(path) = device {
            tree.add(path, Role::Device);
        }
        if let Some(path) = hook.time_path() {
            tree.add(path, Role::Time);
        }
        for (place, metric) in hook.metric_paths().iter().enumerate() {
            tree.add(&metric.path, Role::Metric(place));
        }
        for (place, label) in hook.label_paths().iter().enumerate() {
            tree.add(&label.path, Role::Label(place));
        }
        for (place, metadata) in hook.metadata_paths().iter().enumerate() {
            tree.add(&metadata.path, Role::Metadata(place));
        }
        for (place, condition) in hook.conditions().iter().enumerate() {
            tree.add(&condition.path, Role::Condition(place));
        }
        let device_place = match &hook.device {
            Some(DevicePlace::Body(path)) => format!("{path} in the payload"),
            Some(DevicePlace::Parameter(name)) => format!("parameter {name} in the query string"),
            None => format!("segment {DEVICE_SEGMENT} in the path"),
        };
        let metric_place = hook.metric_paths().first().map_or("", |metric| metric.path.as_str());
        let metadata_keys = hook.metadata_paths().iter().map(|path| json_string(path.name().unwrap_or_default()));
        let is_shared = |path: &JsonPath| path.before_each().is_none();
        Self {
            tree,
            device_place,
            device_prefix: hook.device_prefix.clone().unwrap_or_default(),
            time_unit: hook.time_unit.unwrap_or(TimeUnit::Ms),
            metric_place: metric_place.to_owned(),
            metric_names: names(hook.metric_paths()),
            ignored_keys: hook.ignore.clone().unwrap_or_default(),
            label_names: names(hook.label_paths()),
            metadata_keys: metadata_keys.collect(),
            constants: hook.constants.iter().flatten().map(|(key, value)| (json_string(key), json_of(value))).collect(),
            device_ids: hook.device_ids.clone().unwrap_or_default(),
            conditions: hook.conditions().to_vec(),
            is_owner_shared: device.is_none_or(is_shared)
                && hook.metadata_paths().iter().all(|metadata| is_shared(&metadata.path)),
        }
    }
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The JSON of a value of the configuration, which is no date.
fn json_of(value: &toml::Value) -> String {
    serde_json::to_string(value).expect("texts, numbers, lists and tables are JSON")
}

/// Parses a payload.
///
/// `address` has the parts of readings that are in its URL or topic.
///
/// # Errors
/// When the body is not JSON. `sink` has nothing of it then.
pub fn parse(body: &[u8], hook: &Hook, address: &Address<'_>, sink: &mut impl Sink) -> Result<(), SyntaxError> {
    let mut walk = Walk::new(hook, address, sink.limits());
    let mut lexer = Lexer::new(body)?;
    walk.root(&mut lexer)?;
    lexer.end()?;
    walk.emit(sink)
}
