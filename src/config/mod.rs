//! The configuration: its keys, their defaults and their checks.
//!
//! Each section of the configuration has a file here: `[http]` is in `http.rs`. A flag overrides an
//! environment variable, which overrides the configuration file, which overrides the default.
//! [`Config::load`] merges these sources and checks the result: there is no unknown key, every value is in
//! its range, and no two values contradict each other. An error names the place of the mistake: a line of the
//! file, a variable, a flag or a key.
//!
//! `config/tidegauge.toml` documents every key. This room knows what the keys mean to an operator, and
//! nothing of the rooms that use them.

mod auth;
mod check;
mod devices;
mod difference;
mod environment;
mod error;
mod flush;
mod forward;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hook_path;
mod http;
mod ingest;
mod json_path;
mod key;
mod key_secret;
mod limits;
mod load;
mod log;
mod log_filter;
mod message;
mod mongodb;
mod mongodb_uri;
mod mqtt;
mod mqtt_listener;
mod otlp;
mod path_list;
mod pending;
mod query;
mod remote_write;
mod retention;
mod secret;
mod server;
mod sqlite;
mod store;
mod telemetry;
mod text;
mod timeseries;
mod tls;
mod token;
mod token_hash;
mod topic_template;
mod udp;
mod units;
mod webhook;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use auth::{Audience, Auth, CertificateUse};
pub use devices::Devices;
pub use environment::environment;
pub use error::{ConfigError, Place};
pub use flush::Flush;
pub use forward::Forward;
pub use hook_path::{DEVICE_SEGMENT, HookPath, OWN_PATHS};
pub use http::Http;
pub use ingest::{Ingest, Json, LineProtocol, Senml, Strings, UnknownKeys};
pub use json_path::{JsonPath, JsonPathError, Step};
pub use key::{KEY_ID_MAX_BYTES, Key, is_key_id};
pub use key_secret::KeySecret;
pub use limits::Limits;
pub use load::{Overridden, Override};
pub use log::{Log, MinFree, SyncPolicy};
pub use log_filter::{LogFilter, LogFilterError};
pub use mongodb::{BlockCompressor, BucketLayout, Mongodb};
pub use mongodb_uri::{MongodbUri, MongodbUriError};
pub use mqtt::{BrokerUrl, Mqtt, MqttTopic, MqttVersion, PayloadFormat, Templates};
pub use mqtt_listener::MqttListener;
pub use otlp::Otlp;
pub use path_list::{Condition, NamedPath, PathEntry, PathList};
pub use pending::Pending;
pub use query::Query;
pub use remote_write::RemoteWrite;
pub use retention::{Keep, Retention};
pub use secret::Secret;
pub use server::Server;
pub use sqlite::Sqlite;
pub use store::{Store, StoreKind};
pub use telemetry::{LogFormat, Telemetry};
pub use timeseries::{Granularity, Timeseries};
pub use tls::{ClientCertificates, Tls};
pub use token::{Expiry, Scope, Token};
pub use token_hash::{TokenHash, TokenHashError};
pub use topic_template::{Level, TopicTemplate};
pub use udp::{Listen, Udp};
pub use units::{Bytes, Period, UnitError};
pub use webhook::{DevicePlace, Preset, TimePlace, TimeUnit, Webhook};

/// The configuration, with a field for each section.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[server]`: the data folder and the shutdown.
    pub server: Server,
    /// `[http]`: the HTTP server.
    pub http: Http,
    /// `[udp]`: the UDP sockets.
    pub udp: Udp,
    /// `[mqtt_listener]`: the server for MQTT devices.
    pub mqtt_listener: MqttListener,
    /// `[auth]`: authentication and authorization.
    pub auth: Auth,
    /// `[ingest]`: the rules of admission.
    pub ingest: Ingest,
    /// `[limits]`: the limits per token and per device.
    pub limits: Limits,
    /// `[log]`: the write-ahead log.
    pub log: Log,
    /// `[pending]`: readings in memory that wait for the store.
    pub pending: Pending,
    /// `[flush]`: when and how pending buckets are written to the store.
    pub flush: Flush,
    /// `[forward]`: the other server to which all accepted readings are sent too.
    pub forward: Forward,
    /// `[store]`: the choice of the store.
    pub store: Store,
    /// `[sqlite]`: the embedded store.
    pub sqlite: Sqlite,
    /// `[mongodb]`: the MongoDB store.
    pub mongodb: Mongodb,
    /// `[retention]`: the age at which readings and rollups are deleted.
    pub retention: Retention,
    /// `[query]`: the limits of queries.
    pub query: Query,
    /// `[devices]`: the metric of silent devices.
    pub devices: Devices,
    /// `[telemetry]`: the format and the filter of log lines.
    pub telemetry: Telemetry,
    /// `[[webhook]]`: the paths that accept payloads of other platforms.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub webhook: Vec<Webhook>,
    /// `[[mqtt]]`: the MQTT brokers from which the server receives readings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mqtt: Vec<Mqtt>,
}

impl Config {
    /// The store in use.
    ///
    /// It is `store.kind`, else MongoDB if `mongodb.uri` is set, else SQLite.
    #[must_use]
    pub fn store_kind(&self) -> StoreKind {
        let implied = if self.mongodb.uri.is_some() { StoreKind::Mongodb } else { StoreKind::Sqlite };
        self.store.kind.unwrap_or(implied)
    }

    /// The database file of SQLite.
    ///
    /// It is `sqlite.file`, else `tidegauge.sqlite` in the data folder.
    #[must_use]
    pub fn sqlite_file(&self) -> PathBuf {
        self.sqlite.file.clone().unwrap_or_else(|| self.server.data_dir.join("tidegauge.sqlite"))
    }

    /// This configuration, with defaults that depend on other keys filled in.
    ///
    /// Without `store.kind` and `mongodb.uri`, `store.kind` becomes `sqlite`. The keys of presets are filled
    /// in too.
    #[must_use]
    pub fn filled(&self) -> Self {
        let mut filled = self.clone();
        filled.store.kind = Some(self.store_kind());
        filled.limits.token_bytes_in_flight = Some(self.token_bytes_in_flight());
        filled.retention.rollups = Some(self.retention.rollups());
        filled.webhook = self.webhook.iter().map(Webhook::with_preset).collect();
        filled.mqtt_listener = self.mqtt_listener.with_presets();
        filled.mqtt = self.mqtt.iter().map(Mqtt::with_presets).collect();
        match self.store_kind() {
            StoreKind::Sqlite => filled.sqlite.file = Some(self.sqlite_file()),
            StoreKind::Mongodb | StoreKind::MongodbTimeseries => {
                filled.mongodb.database = Some(self.mongodb.database());
            }
        }
        filled
    }

    /// Checks each section by itself, then the sections against each other.
    fn check(&self) -> Result<(), ConfigError> {
        self.check_sections().next().map_or_else(|| self.check_together(), Err)
    }

    /// The first mistake in each section, if there is one.
    fn check_sections(&self) -> impl Iterator<Item = ConfigError> {
        let checked = [
            self.server.check(),
            self.http.check(),
            self.udp.check(),
            self.mqtt_listener.check(),
            self.auth.check(self.ingest.device_id_case, &self.mqtt),
            self.ingest.check(),
            self.limits.check(),
            self.log.check(),
            self.pending.check(),
            self.flush.check(),
            self.forward.check(),
            self.sqlite.check(),
            self.mongodb.check(),
            self.retention.check(),
            self.query.check(),
            Webhook::check_all(&self.webhook),
            Mqtt::check_all(&self.mqtt),
        ];
        checked.into_iter().filter_map(Result::err)
    }

    /// Checks the sections against each other. Each must be valid by itself.
    fn check_together(&self) -> Result<(), ConfigError> {
        self.check_share()?;
        self.check_store()?;
        self.check_certificates()?;
        self.forward.check_is_other(self.http.listen)?;
        self.check_listen()
    }

    /// The memory for the request bodies of one token.
    ///
    /// It is `limits.token_bytes_in_flight`, else half of `http.max_bytes_in_flight`, but at least
    /// `http.max_body_bytes`.
    #[must_use]
    pub fn token_bytes_in_flight(&self) -> Bytes {
        let half = Bytes(self.http.max_bytes_in_flight.0 / 2);
        self.limits.token_bytes_in_flight.unwrap_or(half.max(self.http.max_body_bytes))
    }

    fn check_share(&self) -> Result<(), ConfigError> {
        let (share, body) = (self.token_bytes_in_flight(), self.http.max_body_bytes);
        check::not_below("limits.token_bytes_in_flight", share, "http.max_body_bytes", body)?;
        let all = self.http.max_bytes_in_flight;
        check::not_above("limits.token_bytes_in_flight", share, "http.max_bytes_in_flight", all)?;
        if self.mqtt_listener.listen == Listen::Off {
            return Ok(());
        }
        let message = self.mqtt_listener.max_packet_bytes;
        check::not_below("limits.token_bytes_in_flight", share, "mqtt_listener.max_packet_bytes", message)
    }

    fn check_store(&self) -> Result<(), ConfigError> {
        if self.store_kind().is_mongodb() && self.mongodb.uri.is_none() {
            return Err(ConfigError::invalid("store.kind", "is a MongoDB store, so mongodb.uri must be set"));
        }
        if self.store_kind() == StoreKind::MongodbTimeseries {
            return self.retention.check_for_timeseries();
        }
        if self.store_kind() != StoreKind::Mongodb {
            return Ok(());
        }
        let (batch, document) = (self.flush.max_readings, self.mongodb.max_readings_per_document);
        check::not_above("flush.max_readings", batch, "mongodb.max_readings_per_document", document)
    }

    /// Checks that certificates are verified, if they give rights.
    fn check_certificates(&self) -> Result<(), ConfigError> {
        if self.auth.client_certificate == CertificateUse::Device && self.http.tls.client_ca_file.is_none() {
            let problem = "is \"device\", so http.tls.client_ca_file must be set";
            return Err(ConfigError::invalid("auth.client_certificate", problem));
        }
        Ok(())
    }

    /// This configuration with the values of `other` that can be reloaded.
    ///
    /// These are `[auth]`, `telemetry.log_level`, and `[http.tls]` unless that would turn TLS on or off.
    ///
    /// # Errors
    /// The combination is invalid, or removes authentication that was required before.
    pub fn reloaded(&self, other: &Self) -> Result<Self, ConfigError> {
        let mut changed = Self { auth: other.auth.clone(), ..self.clone() };
        changed.telemetry.log_level = other.telemetry.log_level.clone();
        if self.http.tls.is_on() && other.http.tls.is_on() {
            changed.http.tls = other.http.tls.clone();
        }
        changed.check()?;
        self.check_stays_closed(&changed)?;
        Ok(changed)
    }

    /// This configuration with other addresses to listen on; `None` keeps an address.
    ///
    /// # Errors
    /// If other machines can reach an address and clients need not authenticate, or if `udp` is an address
    /// and UDP is off.
    pub fn listening_at(&self, http: Option<SocketAddr>, udp: Option<SocketAddr>) -> Result<Self, ConfigError> {
        let mut changed = self.clone();
        changed.http.listen = http.unwrap_or(self.http.listen);
        if let Some(udp) = udp {
            if self.udp.listen == Listen::Off {
                let problem = format!("is off, and a UDP socket ({udp}) was passed to the server; do not pass it");
                return Err(ConfigError::invalid("udp.listen", problem));
            }
            changed.udp.listen = Listen::At(udp);
        }
        changed.check()?;
        Ok(changed)
    }

    /// Checks that a reload does not remove authentication.
    ///
    /// Otherwise a file that was emptied by accident would admit every client. The check of the address does
    /// not notice this behind a reverse proxy, where the server listens on loopback.
    fn check_stays_closed(&self, changed: &Self) -> Result<(), ConfigError> {
        let (old, new) = (&self.auth, &changed.auth);
        let (old_tls, new_tls) = (&self.http.tls, &changed.http.tls);
        let restart = "restart the server if you intend this";
        let decide = format!("set auth.allow_anonymous = true or {restart}");
        let opens = if !new.allow_anonymous && new.lets_anybody_in() && !old.lets_anybody_in() {
            ("auth.tokens", "clients would no longer have to authenticate", decide.as_str())
        } else if !new.allow_anonymous && new.takes_unsigned() && !old.takes_unsigned() {
            ("auth.keys", "datagrams would no longer need a signature", decide.as_str())
        } else if old_tls.requires_certificates() && !new_tls.requires_certificates() {
            ("http.tls.client_ca_file", "clients would no longer need a certificate", restart)
        } else if old_tls.client_crl_file.is_some() && new_tls.client_crl_file.is_none() {
            ("http.tls.client_crl_file", "revoked certificates would be valid again", restart)
        } else {
            return Ok(());
        };
        let (key, what, way_out) = opens;
        Err(ConfigError::invalid(key, format!("would remove protection: {what}; {way_out}")))
    }

    /// Checks that other machines cannot reach an address without authentication.
    fn check_listen(&self) -> Result<(), ConfigError> {
        let is_open = |listen: SocketAddr| !self.auth.allow_anonymous && !listen.ip().to_canonical().is_loopback();
        let mqtt = self.mqtt_listener.listen.address();
        for (key, listen) in [("http.listen", Some(self.http.listen)), ("mqtt_listener.listen", mqtt)] {
            if let Some(listen) = listen.filter(|&listen| is_open(listen) && self.auth.lets_anybody_in()) {
                let way_in = "configure tokens ([[auth.tokens]]; `tidegauge token new` makes one)";
                return Err(within_reach(key, listen, "clients need not authenticate", way_in));
            }
        }
        // Tokens do not protect the UDP address, because a datagram contains no token.
        match self.udp.listen.address() {
            Some(udp) if is_open(udp) && self.auth.keys.is_empty() => {
                let ways_out =
                    "configure keys ([[auth.keys]]; `tidegauge key new` makes one), set udp.listen = \"off\"";
                Err(within_reach("udp.listen", udp, "datagrams need no signature", ways_out))
            }
            _ => Ok(()),
        }
    }
}

fn within_reach(key: &'static str, listen: SocketAddr, why: &str, way_out: &str) -> ConfigError {
    let port = listen.port();
    let problem = format!(
        "is {listen}, which other machines can reach, and {why}; {way_out}, listen on loopback (such as \
         127.0.0.1:{port}), or admit every client with auth.allow_anonymous = true"
    );
    ConfigError::invalid(key, problem)
}

#[cfg(test)]
mod reference_tests;
#[cfg(test)]
mod tests;
