//! Templates of MQTT topics, such as `plant/{site}/{deviceId}/{metric}`.
//!
//! A template says to which topics to subscribe, and what their levels mean.
//!
//! ```text
//! template    = [ "$share/" group "/" ] level { "/" level } [ "/#" ]
//! level       = text | "{deviceId}" | "{metric}" | "{label.NAME}" | "{NAME}" | "{_}" | "+"
//! ```
//!
//! The level `{deviceId}` is the device ID, `{metric}` is the name of the metric, `{label.NAME}` is a label
//! of each metric, and any other `{NAME}` is metadata of the device. `{_}` and `+` match any level and ignore
//! it. `#` matches all levels from there on and ignores them.

use std::fmt;
use std::str::FromStr;

use super::DEVICE_SEGMENT;
use crate::model::check_metadata_key;

/// The longest template, in bytes.
const MAX_BYTES: usize = 256;

/// The longest name of a label, in bytes.
const LABEL_MAX_BYTES: usize = 64;

/// A template of topics, with its original text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicTemplate {
    text: String,
    /// The group of a shared subscription: `g` in `$share/g/plant/+`.
    group: Option<String>,
    levels: Vec<Level>,
}

/// One level of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Level {
    /// This text itself.
    Text(String),
    /// Any text, which is the device ID.
    Device,
    /// Any text, which is the name of the metric.
    Metric,
    /// Any text, which is the value of the label with this name.
    Label(String),
    /// Any text, which is the value of the metadata key with this name.
    Metadata(String),
    /// Any text, which is ignored.
    Any,
    /// Any number of further levels, which are ignored. Always the last level.
    Rest,
}

impl TopicTemplate {
    /// The levels of the template, without `$share` and the group.
    #[must_use]
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// The template as it is in the configuration.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether a level is the device ID.
    #[must_use]
    pub fn has_device(&self) -> bool {
        self.levels.contains(&Level::Device)
    }

    /// Whether a level is the metric, a label or metadata.
    #[must_use]
    pub fn has_more_than_device(&self) -> bool {
        self.levels.iter().any(|level| matches!(level, Level::Metric | Level::Label(_) | Level::Metadata(_)))
    }

    /// The topic filter of the subscription, such as `$share/g/plant/+`.
    #[must_use]
    pub fn filter(&self) -> String {
        let shared = self.group.as_ref().map_or_else(String::new, |group| format!("$share/{group}/"));
        shared + &self.plain_filter()
    }

    /// Whether the subscription is shared, as with `$share/g/`.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.group.is_some()
    }

    /// The topic filter without `$share` and the group, such as `plant/+`.
    #[must_use]
    pub fn plain_filter(&self) -> String {
        let levels = self.levels.iter().map(|level| match level {
            Level::Text(text) => text.as_str(),
            Level::Rest => "#",
            _ => "+",
        });
        levels.collect::<Vec<_>>().join("/")
    }

    /// Whether one topic can match both templates.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.levels.iter(), other.levels.iter());
        loop {
            match (ours.next(), theirs.next()) {
                (Some(Level::Rest), _) | (_, Some(Level::Rest)) | (None, None) => return true,
                (None, Some(_)) | (Some(_), None) => return false,
                (Some(Level::Text(one)), Some(Level::Text(other))) if one != other => return false,
                _ => {}
            }
        }
    }

    /// The names of the labels in the levels, or of the metadata if `labels` is false.
    pub(super) fn names(&self, labels: bool) -> impl Iterator<Item = &str> {
        self.levels.iter().filter_map(move |level| match level {
            Level::Label(name) if labels => Some(name.as_str()),
            Level::Metadata(name) if !labels => Some(name.as_str()),
            _ => None,
        })
    }
}

impl FromStr for TopicTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_BYTES || text.chars().any(char::is_control) {
            return Err(format!("expected a topic of 1 to {MAX_BYTES} bytes without control characters"));
        }
        let (group, levels) = match text.strip_prefix("$share/") {
            None => (None, text),
            Some(rest) => match rest.split_once('/') {
                Some((group, levels))
                    if !group.is_empty() && !group.contains(['+', '#', '{']) && !levels.is_empty() =>
                {
                    (Some(group.to_owned()), levels)
                }
                _ => return Err("expected $share/GROUP/ and a topic".to_owned()),
            },
        };
        let levels: Vec<Level> = levels.split('/').map(level).collect::<Result<_, _>>()?;
        if levels.iter().rev().skip(1).any(|level| *level == Level::Rest) {
            return Err("# must be the last level".to_owned());
        }
        for (place, level) in levels.iter().enumerate() {
            let is_named = !matches!(level, Level::Text(_) | Level::Any | Level::Rest);
            if is_named && levels[..place].contains(level) {
                return Err("a placeholder occurs twice".to_owned());
            }
        }
        Ok(Self { text: text.to_owned(), group, levels })
    }
}

fn level(text: &str) -> Result<Level, String> {
    let Some(name) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
        return match text {
            "+" => Ok(Level::Any),
            "#" => Ok(Level::Rest),
            _ if text.contains(['+', '#', '{', '}']) => Err(format!(
                "expected a text, a placeholder like {DEVICE_SEGMENT}, + or # as a whole level, found {text:?}"
            )),
            _ => Ok(Level::Text(text.to_owned())),
        };
    };
    if let Some(label) = name.strip_prefix("label.") {
        let is_name = (1..=LABEL_MAX_BYTES).contains(&label.len()) && !label.contains(['{', '}']);
        return if is_name {
            Ok(Level::Label(label.to_owned()))
        } else {
            Err(format!("the name of a label has 1 to {LABEL_MAX_BYTES} bytes, found {text:?}"))
        };
    }
    match name {
        "deviceId" => Ok(Level::Device),
        "metric" => Ok(Level::Metric),
        "_" => Ok(Level::Any),
        _ if name.contains(['{', '}']) => Err(format!("expected one placeholder as a whole level, found {text:?}")),
        _ => match check_metadata_key(name, 1) {
            Ok(()) => Ok(Level::Metadata(name.to_owned())),
            Err(error) => Err(format!("{text:?} is no key of metadata: {error}")),
        },
    }
}

impl fmt::Display for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> TopicTemplate {
        text.parse().expect(text)
    }

    #[test]
    fn a_template_is_a_filter_and_its_levels_have_meanings() {
        let plant = template("plant/{site}/{deviceId}/{label.phase}/{metric}/{_}/#");
        assert_eq!(plant.filter(), "plant/+/+/+/+/+/#");
        let metadata = Level::Metadata("site".to_owned());
        let expected = [
            Level::Text("plant".to_owned()),
            metadata,
            Level::Device,
            Level::Label("phase".to_owned()),
            Level::Metric,
            Level::Any,
            Level::Rest,
        ];
        assert_eq!(plant.levels(), expected);
        let shared = template("$share/tidegauge/tele/{deviceId}/SENSOR");
        assert_eq!(
            (shared.filter().as_str(), shared.plain_filter().as_str()),
            ("$share/tidegauge/tele/+/SENSOR", "tele/+/SENSOR")
        );
        assert!(shared.has_device() && !shared.has_more_than_device() && plant.has_more_than_device());
    }

    #[test]
    fn a_text_that_is_no_template_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "1 to 256 bytes"),
            ("a\u{0}", "control characters"),
            ("a/#/b", "# must be the last level"),
            ("a/b#", "as a whole level"),
            ("a/x{deviceId}", "as a whole level"),
            ("{deviceId}/{deviceId}", "occurs twice"),
            ("{}", "is no key of metadata"),
            ("{label.}", "1 to 64 bytes"),
            ("$share/g", "$share/GROUP/"),
            ("$share/+/a", "$share/GROUP/"),
        ] {
            let error = text.parse::<TopicTemplate>().expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!("a/".repeat(129).parse::<TopicTemplate>().is_err());
    }

    #[test]
    fn templates_overlap_if_a_topic_can_match_both() {
        for (one, other, expected) in [
            ("a/{deviceId}", "a/b", true),
            ("a/{deviceId}", "a/b/c", false),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("a/{_}/c", "a/b/d", false),
            ("$share/g/a/b", "a/{deviceId}", true),
        ] {
            assert_eq!(template(one).overlaps(&template(other)), expected, "{one} {other}");
            assert_eq!(template(other).overlaps(&template(one)), expected, "{other} {one}");
        }
    }
}
