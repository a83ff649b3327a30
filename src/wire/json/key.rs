//! The keys of objects: their names, and guesses at what unknown keys mean.

use crate::common::similar::Bare;

/// The meaning of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Device,
    Time,
    Age,
    Metric,
    Value,
    Unit,
    Values,
    Labels,
    Metadata,
    Readings,
    Sequence,
    MeasurementBytes,
}

/// Each meaning with its names. The documentation uses the first name.
const NAMES: [(Key, &[&str]); 12] = [
    (Key::Device, &["deviceId", "device_id", "deviceID", "device", "sensorId", "sensor_id"]),
    (Key::Time, &["ts", "timestamp", "time"]),
    (Key::Age, &["ageMs"]),
    (Key::Metric, &["metric", "name"]),
    (Key::Value, &["value"]),
    (Key::Unit, &["unit"]),
    (Key::Values, &["values", "fields", "measurements"]),
    (Key::Labels, &["labels"]),
    (Key::Metadata, &["metadata", "tags", "meta"]),
    (Key::Readings, &["readings"]),
    (Key::Sequence, &["seq"]),
    (Key::MeasurementBytes, &["measurementBytes"]),
];

/// The names of each key. The documentation uses the first name.
pub fn key_names() -> impl Iterator<Item = &'static [&'static str]> {
    NAMES.iter().map(|(_, names)| *names)
}

/// Names that other programs use, and the key that each probably means.
///
/// The names are in the form of [`Bare`].
const ELSEWHERE: [(&str, &str); 17] = [
    ("at", "ts"),
    ("date", "ts"),
    ("datetime", "ts"),
    ("epoch", "ts"),
    ("t", "ts"),
    ("tsms", "ts"),
    ("timems", "ts"),
    ("unixtime", "ts"),
    ("age", "ageMs"),
    ("data", "values"),
    ("metrics", "values"),
    ("payload", "values"),
    ("v", "value"),
    ("val", "value"),
    ("host", "deviceId"),
    ("id", "deviceId"),
    ("sensor", "deviceId"),
];

impl Key {
    /// The meaning of a key; `None` if the key is unknown.
    #[inline]
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "deviceId" => Some(Self::Device),
            "ts" => Some(Self::Time),
            "value" => Some(Self::Value),
            "values" => Some(Self::Values),
            _ => Self::of_rare(name),
        }
    }

    #[inline(never)]
    fn of_rare(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, names)| names.contains(&name)).map(|&(key, _)| key)
    }

    /// All names of the key.
    pub(super) fn names(self) -> &'static [&'static str] {
        NAMES.iter().find(|(key, _)| *key == self).map_or(&[], |(_, names)| names)
    }

    /// The name of the known key that an unknown key probably means.
    ///
    /// The two keys differ in case, in `_` or in a letter or two (`timestmp`), or other programs use the
    /// unknown key (`date`).
    pub(super) fn meant_by(unknown: &str) -> Option<&'static str> {
        let unknown = Bare::of(unknown)?;
        if let Some(&(_, meant)) = ELSEWHERE.iter().find(|(name, _)| name.as_bytes() == unknown.letters()) {
            return Some(meant);
        }
        unknown.nearest(NAMES.iter().flat_map(|(_, names)| *names).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_meaning() {
        let names: Vec<_> = NAMES.iter().flat_map(|(key, names)| names.iter().map(move |name| (*key, *name))).collect();
        for &(key, name) in &names {
            assert_eq!(Key::of(name), Some(key), "{name}");
            assert_eq!(names.iter().filter(|(_, other)| *other == name).count(), 1, "{name}");
        }
        for name in ["", "Ts", "deviceid", "value ", "note"] {
            assert_eq!(Key::of(name), None, "{name}");
        }
    }

    #[test]
    fn an_unknown_key_may_mean_a_known_one() {
        for (unknown, meant) in [
            ("Time", "time"),
            ("TS", "ts"),
            ("ts_ms", "ts"),
            ("timestmp", "timestamp"),
            ("time-stamp", "timestamp"),
            ("deviceid", "deviceId"),
            ("DEVICE", "device"),
            ("devcieId", "deviceId"),
            ("valeu", "value"),
            ("Values", "values"),
            ("reading", "readings"),
            ("age_ms", "ageMs"),
            ("label", "labels"),
            ("meta_data", "metadata"),
            ("datetime", "ts"),
        ] {
            assert_eq!(Key::meant_by(unknown), Some(meant), "{unknown}");
        }
        for unknown in ["", "_", "x", "temp", "humidity", "temperature", "ü", &"ts".repeat(20), &"ts".repeat(1 << 20)]
        {
            assert_eq!(Key::meant_by(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn the_table_of_the_api_has_all_names() {
        let page = include_str!("../../../docs/http-api.md");
        for (_, names) in NAMES {
            let cells: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            let start = match cells.split_first() {
                Some((first, [])) => format!("| {first} | | "),
                Some((first, others)) => format!("| {first} | {} |", others.join(", ")),
                None => continue,
            };
            assert!(page.contains(&start), "docs/http-api.md has no row that begins with {start}");
        }
    }
}
