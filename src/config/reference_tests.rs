//! `config/tidegauge.toml` documents every key with its true default.

use std::collections::BTreeSet;

use super::*;

const REFERENCE: &str = include_str!("../../config/tidegauge.toml");

/// The keys whose values are tables with any keys.
const TABLES: [&str; 2] = ["constants", "device_ids"];

#[test]
fn the_reference_holds_the_defaults() {
    assert_eq!(toml::from_str::<Config>(REFERENCE).expect("the reference is valid"), Config::default());
}

#[test]
fn the_reference_holds_every_key_that_has_a_default() {
    let defaults = toml::Table::try_from(Config::default()).expect("the defaults are TOML");
    let reference: toml::Table = toml::from_str(REFERENCE).expect("the reference is valid");
    assert_eq!(keys(&reference), keys(&defaults));
}

#[test]
fn the_reference_holds_every_key_without_a_default_as_a_comment() {
    let uncommented = uncomment_keys(REFERENCE);
    let config: Config = toml::from_str(&uncommented).expect("the commented-out values are valid");
    config.check().expect("the commented-out values make sense");

    let table: toml::Table = toml::from_str(&uncommented).expect("just parsed");
    let mut known = known_keys(&table);
    // The reference explains a key of several tables in one of them only.
    let of_webhooks = known_of(&known, "webhook.");
    let of_topics = known_of(&known, "mqtt.topics.");
    known.retain(|key| match (key.strip_prefix("mqtt.topics."), key.strip_prefix("mqtt_listener.topics.")) {
        (Some(key), _) => key == "device" || !of_webhooks.contains(key),
        (_, Some(key)) => key == "topic" || !of_topics.contains(key),
        _ => true,
    });
    assert_eq!(keys(&table), known);
}

#[test]
fn every_key_of_the_reference_has_an_explanation() {
    let lines: Vec<&str> = REFERENCE.lines().collect();
    for pair in lines.windows(2) {
        let is_key = pair[1].contains(" = ") && !pair[1].starts_with("# ");
        assert!(!is_key || pair[0].starts_with("# "), "unexplained: {}", pair[1]);
    }
}

#[test]
fn the_lists_of_tables_are_those_of_the_reference() {
    let headers = REFERENCE.lines().filter_map(|line| line.strip_prefix("#[[")?.strip_suffix("]]"));
    assert_eq!(headers.collect::<Vec<_>>(), message::LISTS_OF_TABLES);
}

#[test]
fn the_corpus_of_the_fuzz_target_has_the_reference() {
    let corpus = include_str!("../../tests/fuzz/corpus/config/reference");
    assert_eq!(corpus, REFERENCE, "tests/fuzz/corpus/config/reference is a link to config/tidegauge.toml");
}

/// All keys as `section.key`.
fn keys(config: &toml::Table) -> BTreeSet<String> {
    let names =
        config.iter().flat_map(|(name, value)| match section_of(value).filter(|_| !TABLES.contains(&&**name)) {
            Some(section) => keys(section).into_iter().map(|key| format!("{name}.{key}")).collect(),
            None => vec![name.clone()],
        });
    names.collect()
}

/// The keys that begin with `section`, without it.
fn known_of(known: &BTreeSet<String>, section: &str) -> BTreeSet<String> {
    known.iter().filter_map(|key| key.strip_prefix(section)).map(str::to_owned).collect()
}

/// A section: a table, or the first of a list of tables.
fn section_of(value: &toml::Value) -> Option<&toml::Table> {
    value.as_table().or_else(|| value.as_array()?.first()?.as_table())
}

/// Uncomments keys without a default. Explanations start with `# `, these keys with `#`.
fn uncomment_keys(text: &str) -> String {
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => format!("{key}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(uncomment).collect()
}

/// Every key of every section, from the error about an unknown key. `reference` tells which keys are
/// sections.
fn known_keys(reference: &toml::Table) -> BTreeSet<String> {
    let expected_instead_of = |toml: &str| -> Vec<String> {
        let error = toml::from_str::<Config>(toml).expect_err("an unknown name");
        let (_, expected) = error.message().split_once("expected").expect("serde lists what is known");
        expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let mut known = BTreeSet::new();
    let mut sections = expected_instead_of("unknown = 1");
    while let Some(section) = sections.pop() {
        let header_of = |section: &str| match value_at(reference, section) {
            Some(toml::Value::Array(_)) => format!("[[{section}]]"),
            _ => format!("[{section}]"),
        };
        // A table in a list needs the element that it belongs to.
        let parents = section.match_indices('.').map(|(at, _)| &section[..at]);
        let parents = parents.filter(|parent| matches!(value_at(reference, parent), Some(toml::Value::Array(_))));
        let header = parents.chain([section.as_str()]).map(header_of).collect::<Vec<_>>().join("\n");
        for key in expected_instead_of(&format!("{header}\nunknown = 1")) {
            let path = format!("{section}.{key}");
            if !TABLES.contains(&&*key) && value_at(reference, &path).and_then(section_of).is_some() {
                sections.push(path);
            } else {
                known.insert(path);
            }
        }
    }
    known
}

fn value_at<'t>(table: &'t toml::Table, path: &str) -> Option<&'t toml::Value> {
    let (section, key) = path.rsplit_once('.').map_or((None, path), |(section, key)| (Some(section), key));
    section.map_or(Some(table), |section| section_of(value_at(table, section)?))?.get(key)
}
