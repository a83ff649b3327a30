//! Topics: which template a topic matches, and what its levels mean.

use smallvec::SmallVec;

use crate::config::{Level, MqttTopic, NamedPath, PathList, PayloadFormat, TopicTemplate, Webhook};
use crate::wire::webhook::Hook;

/// The longest level that names a device, metric, label or metadata, in bytes.
const LEVEL_MAX_BYTES: usize = 128;

/// A template of topics, and the kind of their payloads.
#[derive(Debug)]
pub struct Topic {
    pub(super) template: TopicTemplate,
    pub(super) qos: u8,
    pub(super) kind: Kind,
}

/// The kind of the payloads of a topic.
#[derive(Debug)]
pub enum Kind {
    /// A format of its own. If the payload names no device, the topic names it.
    Own(PayloadFormat),
    /// JSON by the keys of the configuration, or a plain number.
    Mapped {
        /// The hook that reads JSON.
        json: Box<Hook>,
        /// The hook that reads a plain number, as the JSON object `{"value": NUMBER}`.
        number: Box<Hook>,
    },
}

/// The parts of readings that the levels of a topic name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named<'t> {
    pub(super) device: Option<&'t str>,
    pub(super) metric: Option<&'t str>,
    pub(super) labels: SmallVec<[(&'t str, &'t str); 4]>,
    pub(super) metadata: SmallVec<[(&'t str, &'t str); 4]>,
}

/// A level that has a meaning is longer than [`LEVEL_MAX_BYTES`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a level of the topic that has a meaning is longer than {LEVEL_MAX_BYTES} bytes")]
pub(super) struct LevelTooLongError;

impl Topic {
    /// The topics of an entry of the configuration, one for each template.
    #[must_use]
    pub fn all(entry: &MqttTopic) -> Vec<Self> {
        let entry = entry.with_preset();
        let kind = || match entry.mapping() {
            Some(mapping) => {
                let value = PathList(vec![NamedPath { name: None, path: "value".parse().expect("a path") }]);
                let number = Webhook {
                    metrics: Some(value),
                    preset: None,
                    time: None,
                    time_unit: None,
                    ignore: None,
                    labels: None,
                    metadata: None,
                    when: None,
                    ..mapping.clone()
                };
                Kind::Mapped { json: Box::new(Hook::new(&mapping)), number: Box::new(Hook::new(&number)) }
            }
            None => Kind::Own(entry.format.unwrap_or_default()),
        };
        let topic = |template: &TopicTemplate| Self {
            template: template.clone(),
            qos: entry.qos.unwrap_or(1).min(1),
            kind: kind(),
        };
        entry.templates().iter().map(topic).collect()
    }
}

/// Reads the levels of `topic`; `None` if it does not match the template.
pub(super) fn named<'t>(template: &'t TopicTemplate, topic: &'t str) -> Option<Result<Named<'t>, LevelTooLongError>> {
    if !matches(template, topic) {
        return None;
    }
    let mut named = Named::default();
    for (level, text) in template.levels().iter().zip(topic.split('/')) {
        if text.is_empty() {
            continue;
        }
        match level {
            Level::Text(_) | Level::Any | Level::Rest => {}
            _ if text.len() > LEVEL_MAX_BYTES => return Some(Err(LevelTooLongError)),
            Level::Device => named.device = Some(text),
            Level::Metric => named.metric = Some(text),
            Level::Label(name) => named.labels.push((name, text)),
            Level::Metadata(key) => named.metadata.push((key, text)),
        }
    }
    Some(Ok(named))
}

fn matches(template: &TopicTemplate, topic: &str) -> bool {
    let mut texts = topic.split('/');
    for level in template.levels() {
        match (level, texts.next()) {
            (Level::Rest, _) => return true,
            (Level::Text(expected), Some(text)) if expected == text => {}
            (Level::Text(_), _) | (_, None) => return false,
            _ => {}
        }
    }
    texts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> TopicTemplate {
        text.parse().unwrap()
    }

    #[test]
    fn the_levels_of_a_topic_name_device_metric_labels_and_metadata() {
        let plant = template("plant/{site}/{deviceId}/{label.phase}/{metric}/{_}");
        let found = named(&plant, "plant/north/pump-7/L1/current/x").unwrap().unwrap();
        assert_eq!(found.device, Some("pump-7"));
        assert_eq!(found.metric, Some("current"));
        assert_eq!((&found.labels[..], &found.metadata[..]), (&[("phase", "L1")][..], &[("site", "north")][..]));
    }

    #[test]
    fn a_topic_matches_as_a_broker_matches_its_filter() {
        for (filter, topic, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "a/b/", false),
            ("a/{deviceId}", "a/", true),
            ("a/{deviceId}", "a", false),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("a/#", "ab", false),
            ("$share/g/a/+", "a/b", true),
            ("#", "", true),
        ] {
            assert_eq!(matches(&template(filter), topic), expected, "{filter} {topic}");
        }
    }

    #[test]
    fn hostile_topics_are_read_in_linear_time_and_name_no_more_than_their_levels() {
        let deep = template("{a}/{deviceId}/#");
        let many = "x/".repeat(32_000);
        let found = named(&deep, &many).unwrap().unwrap();
        assert_eq!((found.device, found.metadata.len()), (Some("x"), 1));
        let long = format!("a/{}", "x".repeat(65_000));
        assert_eq!(named(&deep, &long), Some(Err(LevelTooLongError)));
        assert!(named(&template("{_}/+"), &long).unwrap().is_ok(), "levels without a meaning may be long");
        let empty = named(&deep, "//").unwrap().unwrap();
        assert_eq!(empty, Named::default());
    }
}
