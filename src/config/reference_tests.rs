//! `config/tidegauge.toml` tells the truth about every key.

use std::collections::BTreeSet;

use super::*;

const REFERENCE: &str = include_str!("../../config/tidegauge.toml");

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
    assert_eq!(keys(&table), known_keys());
}

#[test]
fn every_key_of_the_reference_stands_below_its_explanation() {
    let lines: Vec<&str> = REFERENCE.lines().collect();
    for pair in lines.windows(2) {
        let is_key = pair[1].contains(" = ") && !pair[1].starts_with("# ");
        assert!(!is_key || pair[0].starts_with("# "), "unexplained: {}", pair[1]);
    }
}

/// All keys as `section.key`.
fn keys(config: &toml::Table) -> BTreeSet<String> {
    let names = config.iter().flat_map(|(name, value)| match value {
        toml::Value::Table(section) => keys(section).into_iter().map(|key| format!("{name}.{key}")).collect(),
        _ => vec![name.clone()],
    });
    names.collect()
}

/// Explanations start with `# `, keys that have no default with `#`.
fn uncomment_keys(text: &str) -> String {
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|c: char| c.is_ascii_lowercase()) => format!("{key}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(uncomment).collect()
}

/// Every key that the sections take, as an unknown key makes them say.
fn known_keys() -> BTreeSet<String> {
    let expected_instead_of = |toml: &str| -> Vec<String> {
        let error = toml::from_str::<Config>(toml).expect_err("an unknown name");
        let (_, expected) = error.message().split_once("expected").expect("serde lists what is known");
        expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let defaults = toml::Table::try_from(Config::default()).expect("the defaults are TOML");
    let is_section =
        |path: &str| path.split('.').try_fold(&defaults, |table, name| table.get(name)?.as_table()).is_some();
    let mut known = BTreeSet::new();
    let mut sections = expected_instead_of("unknown = 1");
    while let Some(section) = sections.pop() {
        for key in expected_instead_of(&format!("[{section}]\nunknown = 1")) {
            let path = format!("{section}.{key}");
            if is_section(&path) {
                sections.push(path);
            } else {
                known.insert(path);
            }
        }
    }
    known
}
