//! Messages about a wrong file or value, for people who know neither the parser of TOML nor Rust.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The message about a file that is not TOML.
pub(super) fn of_syntax(text: &str, error: &toml::de::Error) -> String {
    let (message, at) = (error.message(), error.span().unwrap_or_default());
    if message == "duplicate key" {
        let name = text.get(at.clone()).unwrap_or_default();
        return doubled(text, &at).unwrap_or_else(|| format!("the key {name} is there twice"));
    }
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

/// Rewrites a message of the deserializer for people who do not know Rust.
///
/// `expected u16` becomes `expected a whole number up to 65535`.
pub(super) fn plain(message: &str) -> String {
    let numbers = [
        ("u8", "a whole number up to 255"),
        ("u16", "a whole number up to 65535"),
        ("u32", "a whole number up to 4294967295"),
        ("u64", "a whole number"),
        ("usize", "a whole number"),
        ("f64", "a number"),
    ];
    let found = message
        .rsplit_once("expected ")
        .and_then(|(said, name)| Some((said, numbers.iter().find(|(number, _)| *number == name)?.1)));
    found.map_or_else(|| message.to_owned(), |(said, number)| format!("{said}expected {number}"))
}
