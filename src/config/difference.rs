//! The keys on which two configurations differ.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::Config;

impl Config {
    /// The keys with another value in `other`, such as `log.max_bytes`, sorted.
    #[must_use]
    pub fn differing_keys(&self, other: &Self) -> Vec<String> {
        let mut keys = BTreeSet::new();
        let [this, that] = [self, other].map(|config| Table::try_from(config).unwrap_or_default());
        collect(&mut keys, "", &this, &that);
        if self.mongodb.uri != other.mongodb.uri {
            keys.insert("mongodb.uri".to_owned()); // the serialized URI hides its secrets
        }
        if self.forward.token != other.forward.token {
            keys.insert("forward.token".to_owned()); // likewise
        }
        if self.mqtt != other.mqtt {
            keys.insert("mqtt".to_owned()); // likewise
        }
        keys.into_iter().collect()
    }
}

fn collect(keys: &mut BTreeSet<String>, section: &str, this: &Table, that: &Table) {
    for name in this.keys().chain(that.keys()) {
        let key = format!("{section}{name}");
        match (this.get(name), that.get(name)) {
            (one, other) if one == other => {}
            (Some(Value::Table(this)), Some(Value::Table(that))) => collect(keys, &format!("{key}."), this, that),
            _ => _ = keys.insert(key),
        }
    }
}
