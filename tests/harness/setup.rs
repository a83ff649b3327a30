//! The configuration of a test server, without its address and its data folder.

use std::path::Path;

use toml::{Table, Value};

use tidegauge::config::{KeySecret, TokenHash};

use super::Database;

/// The contents of a configuration file.
#[derive(Debug, Default, Clone)]
pub(crate) struct Setup {
    sections: Table,
}

impl Setup {
    /// The default configuration.
    pub(crate) fn default_config() -> Self {
        Self::default()
    }

    /// The configuration of a file with this text.
    pub(crate) fn of(text: &str) -> Self {
        Self { sections: toml::from_str(text).expect("a configuration") }
    }

    /// SQLite, readings of any age, and immediate flushes.
    pub(crate) fn sqlite() -> Self {
        Self::default()
            .set("retention.readings", "forever")
            .set("flush.max_age", "50ms")
            .set("flush.retry_max", "500ms")
    }

    /// MongoDB buckets, readings of any age, and immediate flushes.
    pub(crate) fn mongodb(database: &Database) -> Self {
        let setup = Self::sqlite().set("mongodb.uri", database.uri.as_str());
        setup.set("mongodb.database", database.name.as_str())
    }

    /// MongoDB time series, readings of any age, and immediate flushes.
    pub(crate) fn timeseries(database: &Database) -> Self {
        Self::mongodb(database).set("store.kind", "mongodb-timeseries")
    }

    /// MongoDB buckets whose documents are packed.
    pub(crate) fn packed(database: &Database) -> Self {
        Self::mongodb(database).set("mongodb.layout", "packed")
    }

    /// The setups of every store, each in a database of its own.
    pub(crate) fn of_each_store([readable, packed, timeseries]: &[Database; 3]) -> [Self; 4] {
        [Self::sqlite(), Self::mongodb(readable), Self::packed(packed), Self::timeseries(timeseries)]
    }

    /// Keeps accepted readings pending: no flush is due while a test runs.
    pub(crate) fn all_pending(self) -> Self {
        self.set("flush.max_age", "1d").set("flush.max_readings", 3_600)
    }

    /// Adds a token with the secret [`secret_of`] the name.
    ///
    /// `keys` are further keys.
    pub(crate) fn token(self, name: &str, keys: &str) -> Self {
        let mut table: Table = toml::from_str(keys).expect("keys of a token");
        table.entry("name").or_insert_with(|| name.into());
        table.insert("hash".to_owned(), TokenHash::of(&secret_of(name)).to_string().into());
        let auth = self.sections.get("auth").and_then(|auth| auth.get("tokens")?.as_array().cloned());
        let mut tokens = auth.unwrap_or_default();
        tokens.push(Value::Table(table));
        self.set("auth.tokens", tokens)
    }

    /// Adds a key with the secret [`key_of`] the ID.
    ///
    /// `keys` are further keys.
    pub(crate) fn key(self, id: &str, keys: &str) -> Self {
        let mut table: Table = toml::from_str(keys).expect("keys of a key");
        table.insert("id".to_owned(), id.into());
        table.insert("secret".to_owned(), key_of(id).expose().into());
        let auth = self.sections.get("auth").and_then(|auth| auth.get("keys")?.as_array().cloned());
        let mut all = auth.unwrap_or_default();
        all.push(Value::Table(table));
        self.set("auth.keys", all)
    }

    /// Adds a webhook with these keys.
    pub(crate) fn webhook(mut self, keys: &str) -> Self {
        let table: Table = toml::from_str(keys).expect("keys of a webhook");
        let all = self.sections.entry("webhook").or_insert_with(|| Value::Array(Vec::new()));
        all.as_array_mut().expect("a list").push(Value::Table(table));
        self
    }

    /// Adds an MQTT broker with these keys.
    pub(crate) fn mqtt(mut self, keys: &str) -> Self {
        let table: Table = toml::from_str(keys).expect("keys of a broker");
        let all = self.sections.entry("mqtt").or_insert_with(|| Value::Array(Vec::new()));
        all.as_array_mut().expect("a list").push(Value::Table(table));
        self
    }

    /// Listens for MQTT devices on a free port.
    ///
    /// `keys` has the topics as tables `[[topics]]`, and further keys.
    pub(crate) fn mqtt_listener(mut self, keys: &str) -> Self {
        let mut table: Table = toml::from_str(keys).expect("keys of the listener");
        table.entry("listen").or_insert_with(|| "127.0.0.1:0".into());
        self.sections.insert("mqtt_listener".to_owned(), Value::Table(table));
        self
    }

    /// Sets `section.key` to a value.
    pub(crate) fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        let (section, key) = name.split_once('.').expect("section.key");
        let section = self.sections.entry(section).or_insert_with(|| Value::Table(Table::new()));
        section.as_table_mut().expect("a section").insert(key.to_owned(), value.into());
        self
    }

    /// Sets `section.key` to a value if it is not set.
    pub(crate) fn or(self, name: &str, value: impl Into<Value>) -> Self {
        let (section, key) = name.split_once('.').expect("section.key");
        let is_set = self.sections.get(section).is_some_and(|section| section.get(key).is_some());
        if is_set { self } else { self.set(name, value) }
    }

    /// Turns on TLS with `server.pem` and `server.key` of a folder.
    ///
    /// `keys` are further keys of `[http.tls]`.
    pub(crate) fn tls(self, folder: &Path, keys: &str) -> Self {
        let mut table: Table = toml::from_str(keys).expect("keys of [http.tls]");
        for (key, file) in [("cert_file", "server.pem"), ("key_file", "server.key")] {
            table.insert(key.to_owned(), folder.join(file).display().to_string().into());
        }
        self.set("http.tls", table)
    }

    /// The folder of the TLS files, if TLS is on.
    pub(crate) fn tls_folder(&self) -> Option<&Path> {
        Path::new(self.sections.get("http")?.get("tls")?.get("cert_file")?.as_str()?).parent()
    }

    /// The text of the configuration file.
    pub(crate) fn to_toml(&self) -> String {
        toml::to_string(&self.sections).expect("a table is TOML")
    }
}

/// Makes a module with the name of the function `$run`, with one test per store.
///
/// Each calls the function with the [`Setup`] of its store, and with what stands in parentheses behind it.
macro_rules! in_stores {
    ($run:ident, [$($store:ident $(($($more:expr),+))?),+]) => {
        mod $run {
            $(
                #[tokio::test]
                async fn $store() {
                    super::$run($crate::harness::in_stores!(@setup $store) $($(, $more)+)?).await;
                }
            )+
        }
    };
    (@setup sqlite) => {
        $crate::harness::Setup::sqlite()
    };
    (@setup $store:ident) => {
        $crate::harness::Setup::$store(&$crate::harness::Database::new())
    };
}

pub(crate) use in_stores;

/// The secret of the token with this name.
pub(crate) fn secret_of(name: &str) -> String {
    format!("tg_the-secret-of-{name}")
}

/// The secret of the key with this ID.
pub(crate) fn key_of(id: &str) -> KeySecret {
    KeySecret::new(format!("{:_<43}", format!("the-key-of-{id}"))).expect("a secret")
}
