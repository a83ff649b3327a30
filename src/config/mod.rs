//! The configuration: one file per section, every key with a default, nothing accepted that is not
//! understood.
//!
//! A value comes from a flag, else from the environment, else from the file, else from the default. What a
//! [`Config`] holds after [`Config::load`] has been checked as a whole: no limit is senseless, and no two
//! settings contradict each other. Mistakes are reported where they were made: a place in the file, a
//! variable, a flag, a key.
//!
//! `config/tidegauge.toml` documents every key. This room knows what the keys mean to an operator, and
//! nothing of the rooms that obey them.

mod auth;
mod check;
mod difference;
mod environment;
mod error;
mod flush;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod http;
mod ingest;
mod key;
mod key_secret;
mod limits;
mod load;
mod log;
mod log_filter;
mod mongodb;
mod mongodb_uri;
mod pending;
mod query;
mod retention;
mod server;
mod sqlite;
mod store;
mod telemetry;
mod timeseries;
mod tls;
mod token;
mod token_hash;
mod udp;
mod units;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use auth::{Audience, Auth, CertificateUse};
pub use environment::environment;
pub use error::{ConfigError, Place};
pub use flush::Flush;
pub use http::Http;
pub use ingest::{Ingest, LineProtocol, Senml};
pub use key::{KEY_ID_MAX_BYTES, Key, is_key_id};
pub use key_secret::KeySecret;
pub use limits::Limits;
pub use load::{Override, Overruled, Remarks, Renamed};
pub use log::{Log, MinFree, SyncPolicy};
pub use log_filter::{LogFilter, LogFilterError};
pub use mongodb::Mongodb;
pub use mongodb_uri::{MongodbUri, MongodbUriError};
pub use pending::Pending;
pub use query::Query;
pub use retention::{Keep, Retention};
pub use server::Server;
pub use sqlite::Sqlite;
pub use store::{Store, StoreKind};
pub use telemetry::{LogFormat, Telemetry};
pub use timeseries::{Granularity, Timeseries};
pub use tls::{ClientCertificates, Tls};
pub use token::{Expiry, Scope, Token};
pub use token_hash::{TokenHash, TokenHashError};
pub use udp::{Listen, Udp};
pub use units::{Bytes, Period, UnitError};

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The process.
    pub server: Server,
    /// The HTTP edge.
    pub http: Http,
    /// The UDP edge.
    pub udp: Udp,
    /// Who may use the API.
    pub auth: Auth,
    /// What makes a reading acceptable.
    pub ingest: Ingest,
    /// How much one token or one device may use.
    pub limits: Limits,
    /// The write-ahead log.
    pub log: Log,
    /// Readings in memory that wait for the store.
    pub pending: Pending,
    /// Writing pending buckets to the store.
    pub flush: Flush,
    /// Which store.
    pub store: Store,
    /// The embedded store.
    pub sqlite: Sqlite,
    /// The MongoDB store.
    pub mongodb: Mongodb,
    /// How long readings are kept.
    pub retention: Retention,
    /// Limits of queries.
    pub query: Query,
    /// Log lines of the process.
    pub telemetry: Telemetry,
}

impl Config {
    /// The store in use: what `store.kind` says, else MongoDB when there is a URI, else SQLite.
    #[must_use]
    pub fn store_kind(&self) -> StoreKind {
        let implied = if self.mongodb.uri.is_some() { StoreKind::Mongodb } else { StoreKind::Sqlite };
        self.store.kind.unwrap_or(implied)
    }

    /// The database file of the embedded store: what `sqlite.file` says, else `tidegauge.sqlite` in the data
    /// folder.
    #[must_use]
    pub fn sqlite_file(&self) -> PathBuf {
        self.sqlite.file.clone().unwrap_or_else(|| self.server.data_dir.join("tidegauge.sqlite"))
    }

    /// This configuration with each value that follows from others written out, where there is one.
    #[must_use]
    pub fn filled(&self) -> Self {
        let mut filled = self.clone();
        filled.store.kind = Some(self.store_kind());
        filled.limits.token_bytes_in_flight = Some(self.token_bytes_in_flight());
        filled.retention.rollups = Some(self.retention.rollups());
        match self.store_kind() {
            StoreKind::Sqlite => filled.sqlite.file = Some(self.sqlite_file()),
            StoreKind::Mongodb | StoreKind::MongodbTimeseries => {
                filled.mongodb.database = Some(self.mongodb.database());
            }
        }
        filled
    }

    /// Checks each section by itself, then what sections say together.
    fn check(&self) -> Result<(), ConfigError> {
        self.check_sections().next().map_or_else(|| self.check_together(), Err)
    }

    /// What is wrong with each section by itself: the first mistake of each.
    fn check_sections(&self) -> impl Iterator<Item = ConfigError> {
        let checked = [
            self.server.check(),
            self.http.check(),
            self.udp.check(),
            self.auth.check(self.ingest.device_id_case),
            self.ingest.check(),
            self.limits.check(),
            self.log.check(),
            self.pending.check(),
            self.flush.check(),
            self.sqlite.check(),
            self.mongodb.check(),
            self.retention.check(),
            self.query.check(),
        ];
        checked.into_iter().filter_map(Result::err)
    }

    /// Checks what sections say together, once each by itself is right.
    fn check_together(&self) -> Result<(), ConfigError> {
        self.check_share()?;
        self.check_store()?;
        self.check_certificates()?;
        self.check_listen()
    }

    /// How many bytes of bodies the requests of one token may take: what `limits.token_bytes_in_flight` says,
    /// else half of what all may take, if one body fits into it.
    #[must_use]
    pub fn token_bytes_in_flight(&self) -> Bytes {
        let half = Bytes(self.http.max_bytes_in_flight.0 / 2);
        self.limits.token_bytes_in_flight.unwrap_or(half.max(self.http.max_body_bytes))
    }

    fn check_share(&self) -> Result<(), ConfigError> {
        let (share, body) = (self.token_bytes_in_flight(), self.http.max_body_bytes);
        check::not_below("limits.token_bytes_in_flight", share, "http.max_body_bytes", body)
    }

    fn check_store(&self) -> Result<(), ConfigError> {
        if self.store_kind().is_mongodb() && self.mongodb.uri.is_none() {
            return Err(ConfigError::invalid("store.kind", "is that of a MongoDB store, so mongodb.uri must be set"));
        }
        if self.store_kind() != StoreKind::Mongodb {
            return Ok(());
        }
        let (batch, document) = (self.flush.max_readings, self.mongodb.max_readings_per_document);
        if batch > document {
            let problem = format!("is {batch}, must be at most mongodb.max_readings_per_document, which is {document}");
            return Err(ConfigError::invalid("flush.max_readings", problem));
        }
        Ok(())
    }

    /// Devices are known by certificates only where somebody vouches for these.
    fn check_certificates(&self) -> Result<(), ConfigError> {
        if self.auth.client_certificate == CertificateUse::Device && self.http.tls.client_ca_file.is_none() {
            let problem = "is \"device\", so http.tls.client_ca_file must be set";
            return Err(ConfigError::invalid("auth.client_certificate", problem));
        }
        Ok(())
    }

    /// This configuration with what a running server takes over from `other`: all of `[auth]`, and
    /// `[http.tls]` unless that would turn TLS on or off.
    ///
    /// # Errors
    /// When the two do not go together, or when that would open what is closed.
    pub fn reloaded(&self, other: &Self) -> Result<Self, ConfigError> {
        let mut changed = Self { auth: other.auth.clone(), ..self.clone() };
        if self.http.tls.is_on() && other.http.tls.is_on() {
            changed.http.tls = other.http.tls.clone();
        }
        changed.check()?;
        self.check_stays_closed(&changed)?;
        Ok(changed)
    }

    /// A reload must not open what is closed: an emptied file would let everybody in, and behind a reverse
    /// proxy the address gives no hint of it.
    fn check_stays_closed(&self, changed: &Self) -> Result<(), ConfigError> {
        let (old, new) = (&self.auth, &changed.auth);
        let (old_tls, new_tls) = (&self.http.tls, &changed.http.tls);
        let restart = "restart the server if that is meant";
        let decide = format!("set auth.allow_anonymous = true or {restart}");
        let opens = if !new.allow_anonymous && new.lets_anybody_in() && !old.lets_anybody_in() {
            ("auth.tokens", "nobody would have to authenticate any more", decide.as_str())
        } else if !new.allow_anonymous && new.takes_unsigned() && !old.takes_unsigned() {
            ("auth.keys", "nobody would have to sign datagrams any more", decide.as_str())
        } else if old_tls.requires_certificates() && !new_tls.requires_certificates() {
            ("http.tls.client_ca_file", "clients would no longer have to show a certificate", restart)
        } else if old_tls.client_crl_file.is_some() && new_tls.client_crl_file.is_none() {
            ("http.tls.client_crl_file", "revoked certificates would be good again", restart)
        } else {
            return Ok(());
        };
        let (key, what, way_out) = opens;
        Err(ConfigError::invalid(key, format!("would open what is closed: {what}; {way_out}")))
    }

    /// Closed by default: without authentication, only this machine may connect.
    fn check_listen(&self) -> Result<(), ConfigError> {
        let is_open = |listen: SocketAddr| !self.auth.allow_anonymous && !listen.ip().to_canonical().is_loopback();
        let http = self.http.listen;
        if is_open(http) && self.auth.lets_anybody_in() {
            let way_in = "configure tokens ([[auth.tokens]]; `tidegauge token new` makes one)";
            return Err(within_reach("http.listen", http, "nobody has to authenticate", way_in));
        }
        // Tokens do not help with the other: a datagram carries none.
        match self.udp.listen.address() {
            Some(udp) if is_open(udp) && self.auth.keys.is_empty() => {
                let ways_out =
                    "configure keys ([[auth.keys]]; `tidegauge key new` makes one), set udp.listen = \"off\"";
                Err(within_reach("udp.listen", udp, "nobody has to sign datagrams", ways_out))
            }
            _ => Ok(()),
        }
    }
}

fn within_reach(key: &'static str, listen: SocketAddr, why: &str, way_out: &str) -> ConfigError {
    let port = listen.port();
    let problem = format!(
        "is {listen}, which other machines can reach, and {why}; {way_out}, listen on loopback (such as \
         127.0.0.1:{port}), or let everybody in with auth.allow_anonymous = true"
    );
    ConfigError::invalid(key, problem)
}

#[cfg(test)]
mod reference_tests;
#[cfg(test)]
mod tests;
