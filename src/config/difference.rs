//! Lists the keys whose values differ between two configurations.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::Config;

impl Config {
    /// The keys whose values differ between `self` and `other`, sorted.
    #[must_use]
    pub fn differing_keys(&self, other: &Self) -> Vec<String> {
        let mut keys = BTreeSet::new();
        let [this, that] = [self, other].map(|config| Table::try_from(config).unwrap_or_default());
        collect(&mut keys, "", &this, &that);
        // These values are serialized without their secrets, so the tables do not show whether they differ.
        let with_secrets = [
            ("mongodb.uri", self.mongodb.uri != other.mongodb.uri),
            ("forward.token", self.forward.token != other.forward.token),
            ("mqtt", self.mqtt != other.mqtt),
        ];
        keys.extend(with_secrets.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key.to_owned()));
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
