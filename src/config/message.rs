//! Messages about a wrong file or value, for people who know neither the parser of TOML nor Rust.

use std::ops::Range;

use serde_path_to_error::Segment;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The beginnings of the parser's messages about a text without quotes.
///
/// The parser takes the text for a number or a boolean, by its first letter.
const UNQUOTED: [&str; 6] = [
    "string values must be quoted",
    "invalid boolean",
    "invalid float",
    "invalid mantissa",
    "invalid fraction",
    "invalid exponent",
];

/// The keys whose values are lists of tables, in the order of `config/tidegauge.toml`.
pub(super) const LISTS_OF_TABLES: [&str; 6] =
    ["mqtt_listener.topics", "auth.tokens", "auth.keys", "webhook", "mqtt", "mqtt.topics"];

/// The message about a file that is not TOML.
pub(super) fn of_syntax(text: &str, error: &toml::de::Error) -> String {
    let (message, at) = (error.message(), error.span().unwrap_or_default());
    let found = text.get(at.clone()).unwrap_or_default();
    if message == "duplicate key" {
        return doubled(text, &at).unwrap_or_else(|| format!("the key {found} is there twice"));
    }
    let is_boolean = ["true", "false"].iter().any(|word| found.eq_ignore_ascii_case(word));
    let message = match UNQUOTED.iter().find(|start| message.starts_with(**start)) {
        Some(_) if is_boolean => "expected true or false, in lower case",
        Some(_) => "expected a text in quotes, a number, true or false",
        None => message,
    };
    message.to_owned()
}

/// The message about a table or key that is there twice, with the line of the first one.
///
/// `at` is the place of the second one. `None`: the second one is inside a value.
fn doubled(text: &str, at: &Range<usize>) -> Option<String> {
    let line_start = text.get(..at.start)?.rfind('\n').map_or(0, |newline| newline + 1);
    let (before, begun) = (&text[..line_start], text.get(line_start..at.end)?.trim_start());
    let is_table = begun.starts_with('[');
    let path = if is_table {
        path_of(&format!("{begun}{}", if begun.starts_with("[[") { "]]" } else { "]" }))?
    } else {
        let table = before.lines().rev().find(|line| line.trim_start().starts_with('['));
        let mut path = table.map_or_else(|| Some(Vec::new()), path_of)?;
        path.extend(path_of(&format!("{begun} = 0"))?);
        path
    };
    let parsed = DeTable::parse(before).ok()?;
    let first = value_at(parsed.get_ref(), &path)?;
    let (name, line) = (path.join("."), before.get(..first.span().start)?.matches('\n').count() + 1);
    Some(match first.get_ref() {
        DeValue::Array(_) if is_table => format!("line {line} has [[{name}]]: write [[{name}]] here too"),
        _ if is_table => format!("the table [{name}] is already in line {line}: change its keys there"),
        _ => format!("the key {name} is already in line {line}: change it there"),
    })
}

/// The path that a line with a table or a key names: `http` and `tls` of `[http.tls]`.
fn path_of(line: &str) -> Option<Vec<String>> {
    let parsed = DeTable::parse(line).ok()?;
    let (mut table, mut path) = (parsed.get_ref(), Vec::new());
    while let Some((name, value)) = table.iter().next() {
        path.push(name.get_ref().to_string());
        let DeValue::Table(inner) = value.get_ref() else { break };
        table = inner;
    }
    Some(path)
}

/// The value at the end of a path, which leads into the last table of a list.
fn value_at<'t, 'i>(table: &'t DeTable<'i>, path: &[String]) -> Option<&'t Spanned<DeValue<'i>>> {
    let (name, rest) = path.split_first()?;
    let value = table.get(name.as_str())?;
    match value.get_ref() {
        _ if rest.is_empty() => Some(value),
        DeValue::Table(inner) => value_at(inner, rest),
        DeValue::Array(list) => value_at(list.last()?.get_ref().as_table()?, rest),
        _ => None,
    }
}

/// The message about a value that does not fit its key.
///
/// `expected u16` becomes `expected a whole number up to 65535`.
pub(super) fn of_value(error: &serde_path_to_error::Error<toml::de::Error>) -> String {
    let names = [
        ("u8", "a whole number up to 255"),
        ("u16", "a whole number up to 65535"),
        ("u32", "a whole number up to 4294967295"),
        ("u64", "a whole number"),
        ("usize", "a whole number"),
        ("f64", "a number"),
        ("a boolean", "true or false"),
        ("a string", "a text in quotes"),
        ("path string", "a text in quotes"),
        ("a sequence", "a list, as [\"a\", \"b\"] is one of texts"),
        ("a map", "a table"),
    ];
    let key = key_of(error.path());
    match error.inner().message() {
        "invalid type: map, expected a sequence" if LISTS_OF_TABLES.contains(&&*key) => {
            format!("expected a list of tables: in the file, write [[{key}]]")
        }
        "wanted string or table" => "expected a text in quotes".to_owned(),
        message => {
            let Some((said, name)) = message.rsplit_once("expected ") else { return message.to_owned() };
            let known = names.iter().find(|(known, _)| *known == name).map(|(_, plain)| *plain);
            let plain = if name.starts_with("struct ") { "a table" } else { known.unwrap_or(name) };
            format!("{said}expected {plain}")
        }
    }
}

/// The key at the end of a path, without the places in lists: `mqtt.topics`.
fn key_of(path: &serde_path_to_error::Path) -> String {
    let names = path.iter().filter_map(|segment| match segment {
        Segment::Map { key } => Some(key.as_str()),
        _ => None,
    });
    names.collect::<Vec<_>>().join(".")
}
