//! Merges the file, the environment variables and the flags into a [`Config`].
//!
//! The file is read as a whole, and the variables and flags one by one. A wrong value is reported with its
//! place and left out, and the other values are checked too. So one run reports many mistakes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde_path_to_error::Segment;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::environment::path_of;
use super::error::Place;
use super::message;
use super::{Config, ConfigError};
use crate::common::small_file::read_small_text;

/// The most mistakes that are reported. Each costs another pass over the file.
pub(super) const MAX_MISTAKES: usize = 50;

/// A value that a flag of the command line sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// The name of the flag, such as `--http`, for messages.
    pub flag: &'static str,
    /// The section whose key the flag sets.
    pub section: &'static str,
    /// The key that the flag sets.
    pub key: &'static str,
    /// The value of the flag.
    pub value: String,
}

/// A value of the file that an environment variable or a flag overrides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overridden {
    /// The key with its section, such as `http.listen`.
    pub key: String,
    /// The place of the overridden value in the file.
    pub file: Place,
    /// The variable or flag that overrides it.
    pub by: Place,
    /// The value in the file and the value of the variable or flag.
    ///
    /// `None` if they are secret, lists or tables.
    values: Option<(String, String)>,
}

impl fmt::Display for Overridden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, file, by, values } = self;
        match values {
            Some((old, new)) => write!(f, "{key} = {old} ({file}) is overridden by {by}: {new}"),
            None => write!(f, "{key} ({file}) is overridden by {by}"),
        }
    }
}

impl Config {
    /// Loads and checks the configuration.
    ///
    /// The values come from four sources: the defaults, the TOML `file`, the variables of `env` named
    /// `TIDEGAUGE_<SECTION>__<KEY>`, and `overrides`. A later source overrides an earlier one. Secrets in
    /// files of their own are read too.
    ///
    /// The text of a variable or override is read as a TOML value if that fits the key, else as plain text.
    /// So texts need no quotes. A variable with the prefix that names no key is an error, unless it is known
    /// to belong to another program. Variables without the prefix are ignored.
    ///
    /// # Errors
    /// All mistakes, each with its place, except for mistakes that only follow from another one. Of a list,
    /// such as `[[webhook]]`, only the first mistake, with the number of its table.
    pub fn load(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        overrides: &[Override],
    ) -> Result<Self, ConfigError> {
        Self::load_and_compare(file, env, overrides).map(|(config, _)| config)
    }

    /// Does the same as [`Config::load`], and also returns the overridden values.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_and_compare(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        overrides: &[Override],
    ) -> Result<(Self, Vec<Overridden>), ConfigError> {
        let (mut layers, mut mistakes) = match file {
            Some(path) => {
                let text = read_small_text(path);
                let text = text.map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
                Layers::from_text(&text, path)?
            }
            None => Default::default(),
        };
        let (of_file, places_in_file) = (layers.config.clone(), layers.places.clone());
        for (variable, value) in env {
            let place = Place::Environment(variable);
            let Place::Environment(variable) = &place else { continue };
            let set = match path_of(variable, &value) {
                Ok(None) => continue,
                Ok(Some(path)) => layers.set(&path, &value, &place),
                Err(message) => Err(message),
            };
            mistakes.extend(set.err().map(|message| ConfigError::Set { place, message }));
        }
        for Override { flag, section, key, value } in overrides {
            let (path, place) = ([section, key].map(|&name| name.to_owned()), Place::Flag(flag));
            let set = layers.set(&path, value, &place);
            mistakes.extend(set.err().map(|message| ConfigError::Set { place, message }));
        }
        layers.check(&mut mistakes);
        if let Some(error) = ConfigError::of(mistakes) {
            return Err(error);
        }
        let overridden = layers.overridden(&of_file, &places_in_file);
        Ok((layers.config, overridden))
    }
}

/// The values that the sources have set so far, and the resulting configuration.
#[derive(Default)]
pub(super) struct Layers {
    set: Table,
    /// The last place that set a key, by key: `http.listen`.
    places: BTreeMap<String, Place>,
    /// The keys with a wrong value.
    wrong: BTreeSet<String>,
    pub(super) config: Config,
}

impl Layers {
    /// Reads the text of the file at `path`: its valid values and its mistakes.
    ///
    /// # Errors
    /// The file is not TOML, or has too many mistakes.
    pub(super) fn from_text(text: &str, path: &Path) -> Result<(Self, Vec<ConfigError>), ConfigError> {
        let place = |at: usize| {
            let (line, column) = line_and_column(text, at);
            Place::File { path: path.to_owned(), line, column }
        };
        let mistake = |error: &toml::de::Error, message: String| {
            let place = place(error.span().map_or(0, |span| span.start));
            ConfigError::Set { place, message }
        };
        let mut document = DeTable::parse(text).map_err(|error| mistake(&error, message::of_syntax(text, &error)))?;
        let (mut mistakes, mut wrong) = (Vec::new(), BTreeSet::new());
        for (key, at) in too_large(document.get_mut(), "") {
            mistakes.push(ConfigError::Set { place: place(at), message: format!("{key}: the number is too large") });
            wrong.insert(key);
        }
        let config = loop {
            let deserializer = toml::Deserializer::from(document.clone());
            match serde_path_to_error::deserialize::<_, Config>(deserializer) {
                Ok(config) => break config,
                Err(error) => {
                    let inner = error.inner();
                    mistakes.push(mistake(inner, format!("{}: {}", error.path(), message::of_value(&error))));
                    wrong.insert(error.path().to_string());
                    let is_removed = remove(document.get_mut(), &mut error.path().iter());
                    if !is_removed || mistakes.len() >= MAX_MISTAKES {
                        return Err(ConfigError::of(mistakes).expect("just found"));
                    }
                }
            }
        };
        let mut places = BTreeMap::new();
        record_places(&mut places, "", document.get_ref(), &place);
        let set = Table::deserialize(toml::Deserializer::from(document));
        let set = set.map_err(|error| mistake(&error, error.message().to_owned()))?;
        Ok((Self { set, places, wrong, config }, mistakes))
    }

    /// Sets the key at the end of `path` to the value in `text`.
    ///
    /// # Errors
    /// The reason why the path or the value is wrong.
    pub(super) fn set(&mut self, path: &[String], text: &str, place: &Place) -> Result<(), String> {
        let plain = Value::String(text.to_owned());
        let set = match text.parse::<Value>() {
            Ok(typed) => {
                let is_scalar = !(typed.is_array() || typed.is_table());
                self.try_set(path, typed).or_else(|of_typed| {
                    // If both fail, the error about the text is more helpful for a key that takes only texts.
                    let is_of_type = |message: &str| message.starts_with("invalid type: ");
                    self.try_set(path, plain).map_err(|of_text| {
                        if is_scalar && is_of_type(&of_typed) && !is_of_type(&of_text) { of_text } else { of_typed }
                    })
                })
            }
            Err(_) => self.try_set(path, plain),
        };
        let key = path.join(".");
        match &set {
            Ok(()) => _ = self.places.insert(key, place.clone()),
            Err(_) => _ = self.wrong.insert(key),
        }
        set
    }

    fn try_set(&mut self, path: &[String], value: Value) -> Result<(), String> {
        let mut set = self.set.clone();
        insert(&mut set, path, value);
        self.config = serde_path_to_error::deserialize(set.clone()).map_err(|error| message::of_value(&error))?;
        self.set = set;
        Ok(())
    }

    /// Adds the mistakes of values that are out of range or contradict others.
    ///
    /// A wrong key is reset to its default. Mistakes that name a wrong key are ignored, because they may
    /// follow from it.
    fn check(&mut self, mistakes: &mut Vec<ConfigError>) {
        loop {
            let secrets = [self.config.auth.read_secrets().err(), self.config.forward.read_secret().err()];
            let of_brokers = self.config.mqtt.iter_mut().filter_map(|broker| broker.read_secret().err());
            let secrets: Vec<ConfigError> = secrets.into_iter().flatten().chain(of_brokers).collect();
            let found: Vec<ConfigError> = secrets.into_iter().chain(self.config.check_sections()).collect();
            let before = mistakes.len();
            for mistake in found {
                let ConfigError::Invalid { key, problem, .. } = mistake else { continue };
                let follows = self.wrong.iter().any(|wrong| problem.contains(wrong.as_str()));
                if !follows && self.wrong.insert(key.to_string()) {
                    self.unset(&key);
                    mistakes.push(ConfigError::Invalid { place: self.places.get(&*key).cloned(), key, problem });
                }
            }
            if mistakes.len() == before {
                break;
            }
        }
        // Sections can be checked together only if each of them is valid by itself.
        if mistakes.is_empty()
            && let Err(mistake) = self.config.check_together()
        {
            mistakes.push(match mistake {
                ConfigError::Invalid { key, problem, .. } => {
                    ConfigError::Invalid { place: self.places.get(&*key).cloned(), key, problem }
                }
                other => other,
            });
        }
    }

    /// Resets a key to its default.
    fn unset(&mut self, key: &str) {
        let path: Vec<&str> = key.split('.').collect();
        let (last, sections) = path.split_last().expect("a key has a name");
        let table = sections.iter().try_fold(&mut self.set, |table, section| table.get_mut(*section)?.as_table_mut());
        if table.is_some_and(|table| table.remove(*last).is_some())
            && let Ok(config) = Config::deserialize(self.set.clone())
        {
            self.config = config;
        }
    }

    /// The values in the file that a variable or flag overrides.
    fn overridden(&self, of_file: &Config, places_in_file: &BTreeMap<String, Place>) -> Vec<Overridden> {
        let tables = [of_file, &self.config].map(|config| Table::try_from(config).unwrap_or_default());
        let differing = of_file.differing_keys(&self.config).into_iter();
        let overridden = differing.filter_map(|key| {
            let (file, by) = (places_in_file.get(&key)?.clone(), self.places.get(&key)?.clone());
            let value = |table| value_at(table, &key).filter(|value| !(value.is_array() || value.is_table()));
            let [old, new] = tables.each_ref().map(|table| value(table).map(Value::to_string));
            let values = old.zip(new).filter(|(old, new)| old != new);
            (file != by).then_some(Overridden { key, file, by, values })
        });
        overridden.collect()
    }
}

fn value_at<'t>(table: &'t Table, key: &str) -> Option<&'t Value> {
    match key.split_once('.') {
        Some((section, rest)) => value_at(table.get(section)?.as_table()?, rest),
        None => table.get(key),
    }
}

/// Removes the key at the end of a path, or the whole list if it is in a list.
///
/// Returns whether the key was present.
fn remove<'p>(table: &mut DeTable<'_>, path: &mut impl Iterator<Item = &'p Segment>) -> bool {
    let Some(Segment::Map { key }) = path.next() else { return false };
    if let Some(DeValue::Table(inner)) = table.get_mut(key.as_str()).map(Spanned::get_mut)
        && remove(inner, path)
    {
        return true;
    }
    table.remove(key.as_str()).is_some()
}

/// Removes the integers that do not fit into `i64`.
///
/// Returns their keys and their byte offsets in the file.
///
/// `section` is the start of the keys, such as `http.` or an empty text.
fn too_large(table: &mut DeTable<'_>, section: &str) -> Vec<(String, usize)> {
    let (mut found, mut removed) = (Vec::new(), Vec::new());
    for (name, value) in table.iter_mut() {
        let (name, at) = (name.get_ref(), value.span().start);
        match value.get_mut() {
            DeValue::Table(inner) => found.extend(too_large(inner, &format!("{section}{name}."))),
            DeValue::Integer(number) if i64::from_str_radix(number.as_str(), number.radix()).is_err() => {
                found.push((format!("{section}{name}"), at));
                removed.push(name.to_string());
            }
            _ => {}
        }
    }
    for name in removed {
        table.remove(name.as_str());
    }
    found
}

/// Records the place of each value in `table`, by its key.
///
/// `section` is the start of the keys, such as `http.` or an empty text.
fn record_places(
    places: &mut BTreeMap<String, Place>,
    section: &str,
    table: &DeTable<'_>,
    place: &impl Fn(usize) -> Place,
) {
    for (name, value) in table {
        let (key, value): (String, &Spanned<DeValue<'_>>) = (format!("{section}{}", name.get_ref()), value);
        if let DeValue::Table(inner) = value.get_ref() {
            record_places(places, &format!("{key}."), inner, place);
        } else {
            places.insert(key, place(value.span().start));
        }
    }
}

/// Inserts `value` at the end of `path`, and creates missing sections.
///
/// If there is a plain value in place of a section, it is replaced by the section.
pub(super) fn insert(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [key] => drop(table.insert(key.clone(), value)),
        [section, rest @ ..] => {
            let mut inner = match table.remove(section) {
                Some(Value::Table(inner)) => inner,
                _ => Table::new(),
            };
            insert(&mut inner, rest, value);
            table.insert(section.clone(), Value::Table(inner));
        }
    }
}

/// The line and the column, both from 1, of the byte at offset `at` of `text`.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
