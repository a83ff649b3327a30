//! The configuration: one file per section, every key with a default, nothing accepted that is not understood.
//!
//! A value comes from a flag, else from the environment, else from the file, else from the default. What a
//! [`Config`] holds after [`Config::load`] has been checked as a whole: no limit is senseless, and no two settings
//! contradict each other. Mistakes are reported where they were made: a place in the file, a variable, a flag, a key.
//!
//! `config/tidegauge.toml` documents every key. This room knows what the keys mean to an operator, and nothing of the
//! rooms that obey them.

mod auth;
mod check;
mod error;
mod flush;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod http;
mod ingest;
mod key;
mod key_secret;
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
mod token;
mod token_hash;
mod udp;
mod units;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use auth::{Audience, Auth};
pub use error::ConfigError;
pub use flush::Flush;
pub use http::Http;
pub use ingest::{Ingest, LineProtocol, Senml};
pub use key::{KEY_ID_MAX_BYTES, Key, is_key_id};
pub use key_secret::KeySecret;
pub use load::{Override, environment};
pub use log::{Log, SyncPolicy};
pub use log_filter::{LogFilter, LogFilterError};
pub use mongodb::Mongodb;
pub use mongodb_uri::MongodbUri;
pub use pending::Pending;
pub use query::Query;
pub use retention::{Keep, Retention};
pub use server::Server;
pub use sqlite::Sqlite;
pub use store::{Store, StoreKind};
pub use telemetry::{LogFormat, Telemetry};
pub use timeseries::{Granularity, Timeseries};
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

    /// The database file of the embedded store: what `sqlite.file` says, else `tidegauge.sqlite` in the data folder.
    #[must_use]
    pub fn sqlite_file(&self) -> PathBuf {
        self.sqlite.file.clone().unwrap_or_else(|| self.server.data_dir.join("tidegauge.sqlite"))
    }

    /// Checks each section by itself, then what sections say together.
    fn check(&self) -> Result<(), ConfigError> {
        self.server.check()?;
        self.http.check()?;
        self.udp.check()?;
        self.auth.check(self.ingest.device_id_case)?;
        self.ingest.check()?;
        self.log.check()?;
        self.pending.check()?;
        self.flush.check()?;
        self.sqlite.check()?;
        self.mongodb.check()?;
        self.retention.check()?;
        self.query.check()?;
        self.check_store()?;
        self.check_listen()
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

    /// This configuration with another `[auth]`: for a server that goes on with the addresses it listens on.
    ///
    /// # Errors
    /// When the two do not go together.
    pub fn with_auth(&self, auth: Auth) -> Result<Self, ConfigError> {
        let changed = Self { auth, ..self.clone() };
        changed.check()?;
        Ok(changed)
    }

    /// Closed by default: without authentication, only this machine may connect.
    fn check_listen(&self) -> Result<(), ConfigError> {
        let is_open = |listen: SocketAddr| !self.auth.allow_anonymous && !listen.ip().to_canonical().is_loopback();
        let http = self.http.listen;
        if is_open(http) && self.auth.tokens.is_empty() {
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
