//! The health of each server, so that an error can tell an operator what to correct.
//!
//! A call that finds no server only times out. The driver learns the reason from each server that it
//! monitors, and reports it as events; it forgets servers that the URI does not ask for. This module
//! remembers them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bson::Document;
use mongodb::error::{Error, ErrorKind};
use mongodb::event::EventHandler;
use mongodb::event::sdam::SdamEvent;

use super::collection::Deployment;
use crate::store::{Cause, StoreError};

/// The most servers that an error names.
const NAMED_MAX: usize = 5;

/// The longest text about one server, in characters.
const WHY_MAX_CHARS: usize = 200;

/// The servers that the URI names, and the servers that these report.
#[derive(Debug, Clone)]
pub(super) struct Servers {
    /// The replica set that the URI asks for.
    wanted_set: Option<String>,
    known: Arc<Mutex<BTreeMap<String, Health>>>,
}

/// The last known state of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Health {
    /// The server has not answered yet.
    Unknown,
    /// The server cannot be reached.
    Failed(String),
    /// The server is not of the kind that the URI asks for.
    ///
    /// The driver has dropped it until the next start.
    Unsuitable(String),
    /// The server answers, and accepts no writes.
    NotWritable(&'static str),
    Writable,
}

impl Servers {
    pub(super) fn new(wanted_set: Option<String>) -> Self {
        Self { wanted_set, known: Arc::default() }
    }

    /// Passes each event of the driver to [`Self::on_event`].
    pub(super) fn listener(&self) -> EventHandler<SdamEvent> {
        let servers = self.clone();
        EventHandler::callback(move |event| servers.on_event(event))
    }

    /// Replaces the driver's text by the health of the servers, if no server was reachable.
    pub(super) fn explain(&self, error: StoreError) -> StoreError {
        match self.why_unreachable(error.cause) {
            Some(detail) => StoreError::new(error.cause, detail),
            None => error,
        }
    }

    /// Why no server was reachable, if that is the cause of an error.
    pub(super) fn why_unreachable(&self, cause: Cause) -> Option<String> {
        self.why_no_writes().filter(|_| cause.is_unreachable() && !matches!(cause, Cause::Auth | Cause::Forbidden))
    }

    /// Why no server accepts writes, as far as that is known; `None` if one does.
    fn why_no_writes(&self) -> Option<String> {
        let known = self.lock();
        if known.is_empty() || known.values().any(|health| *health == Health::Writable) {
            return None;
        }
        let named: Vec<String> = known.iter().take(NAMED_MAX).map(|(address, health)| health.of(address)).collect();
        let more = known.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        Some(format!("{}{more}", named.join("; ")))
    }

    fn on_event(&self, event: SdamEvent) {
        match event {
            SdamEvent::ServerOpening(opening) => {
                self.lock().entry(opening.address.to_string()).or_insert(Health::Unknown);
            }
            SdamEvent::ServerHeartbeatSucceeded(beat) => {
                let health = self.health_of(&beat.reply);
                self.lock().insert(beat.server_address.to_string(), health);
            }
            SdamEvent::ServerHeartbeatFailed(beat) => {
                let mut known = self.lock();
                let health = known.entry(beat.server_address.to_string()).or_insert(Health::Unknown);
                if !matches!(health, Health::Unsuitable(_)) {
                    *health = Health::Failed(reason_of(&beat.failure));
                }
            }
            SdamEvent::ServerClosed(closed) => {
                let mut known = self.lock();
                let address = closed.address.to_string();
                if !matches!(known.get(&address), Some(Health::Unsuitable(_))) {
                    known.remove(&address);
                }
            }
            _ => {}
        }
    }

    /// Derives the health of a server from its reply to `hello`.
    fn health_of(&self, hello: &Document) -> Health {
        let Some(wanted) = &self.wanted_set else { return Self::role_of(hello) };
        match hello.get_str("setName").ok() {
            Some(set) if set == wanted => Self::role_of(hello),
            Some(set) => Health::Unsuitable(format!(
                "is in replica set {set}, but mongodb.uri says replicaSet={wanted}; correct the URI and restart \
                 tidegauge"
            )),
            None if hello.get_bool("isreplicaset").unwrap_or(false) => Self::role_of(hello),
            None if Deployment::of(hello) == Deployment::Sharded => Health::Unsuitable(format!(
                "is a mongos, but mongodb.uri says replicaSet={wanted}; remove replicaSet from the URI and restart \
                 tidegauge"
            )),
            None => Health::Unsuitable(format!(
                "is a standalone server, but mongodb.uri says replicaSet={wanted}; start mongod with --replSet \
                 {wanted}, run rs.initiate() in mongosh once and restart tidegauge, or remove replicaSet from the URI"
            )),
        }
    }

    fn role_of(hello: &Document) -> Health {
        let is = |field| hello.get_bool(field).unwrap_or(false);
        if is("isWritablePrimary") || is("ismaster") {
            Health::Writable
        } else if is("isreplicaset") {
            Health::NotWritable("is in no replica set yet; run rs.initiate() on it in mongosh")
        } else if is("secondary") {
            Health::NotWritable("is a secondary, and there is no primary")
        } else {
            Health::NotWritable("is neither primary nor secondary")
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Health>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Health {
    fn of(&self, address: &str) -> String {
        match self {
            Self::Unknown => format!("{address}: no answer yet"),
            Self::Failed(why) => format!("{address}: {why}"),
            Self::Unsuitable(what) => format!("{address} {what}"),
            Self::NotWritable(what) => format!("{address} {what}"),
            Self::Writable => format!("{address} takes writes"),
        }
    }
}

/// The driver's reason why it does not reach a server, without the driver's wrapping.
fn reason_of(error: &Error) -> String {
    let text = match &*error.kind {
        ErrorKind::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        ErrorKind::Io(error) if error.to_string().contains("close_notify") => {
            "it closed the connection within TLS; if it wants a client certificate, set tlsCertificateKeyFile in \
             mongodb.uri"
                .to_owned()
        }
        ErrorKind::Io(error) => error.to_string(),
        ErrorKind::InvalidArgument { message, .. } => message.clone(),
        other => other.to_string(),
    };
    let text = text.split(" (os error").next().unwrap_or_default();
    text.chars().take(WHY_MAX_CHARS).collect::<String>().replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn servers(wanted_set: &str, known: &[(&str, Health)]) -> Servers {
        let servers = Servers::new(Some(wanted_set.to_owned()));
        servers.lock().extend(known.iter().map(|(address, health)| ((*address).to_owned(), health.clone())));
        servers
    }

    #[test]
    fn the_health_of_the_servers_replaces_the_text_of_a_timeout_only() {
        let refused = Health::Failed(reason_of(&std::io::Error::from_raw_os_error(111).into()));
        let away = servers("rs0", &[("a:1", refused), ("b:2", Health::Unknown)]);
        let error = |cause| StoreError::new(cause, "the driver's");
        let explained = away.explain(error(Cause::Timeout)).with_cause();
        assert_eq!(explained, "timeout: a:1: Connection refused; b:2: no answer yet");
        for refused in [Cause::Auth, Cause::Forbidden] {
            assert_eq!(away.explain(error(refused)).with_cause(), "auth: the driver's");
        }
        assert_eq!(away.explain(error(Cause::Contention)).with_cause(), "contention: the driver's");
        let there = servers("rs0", &[("a:1", Health::Writable), ("b:2", Health::Unknown)]);
        assert_eq!(there.explain(error(Cause::Timeout)).with_cause(), "timeout: the driver's");
        assert_eq!(servers("rs0", &[]).explain(error(Cause::Timeout)).with_cause(), "timeout: the driver's");
    }

    #[test]
    fn a_connection_that_ends_within_tls_may_lack_a_client_certificate() {
        let ended = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "peer closed without TLS close_notify");
        assert!(reason_of(&ended.into()).contains("set tlsCertificateKeyFile in mongodb.uri"));
    }

    #[test]
    fn each_kind_of_server_is_recognized_by_its_hello() {
        let servers = servers("rs0", &[]);
        let said = |hello: Document| servers.health_of(&hello).of("a:1");
        assert_eq!(servers.health_of(&doc! { "setName": "rs0", "isWritablePrimary": true }), Health::Writable);
        assert_eq!(Servers::new(None).health_of(&doc! { "isWritablePrimary": true }), Health::Writable);
        assert!(said(doc! { "isWritablePrimary": true }).starts_with("a:1 is a standalone server, but"));
        assert!(said(doc! { "msg": "isdbgrid", "isWritablePrimary": true }).starts_with("a:1 is a mongos, but"));
        assert!(said(doc! { "setName": "rs1", "secondary": true }).contains("is in replica set rs1, but"));
        assert!(said(doc! { "isreplicaset": true }).contains("rs.initiate()"));
        assert!(said(doc! { "setName": "rs0", "secondary": true }).contains("is a secondary"));
    }

    #[test]
    fn an_error_names_five_servers_and_the_number_of_the_others() {
        let known: Vec<_> = ["a", "b", "c", "d", "e", "f", "g"].map(|address| (address, Health::Unknown)).into();
        let trouble = servers("rs0", &known).why_no_writes().expect("trouble");
        assert!(trouble.contains("e: no answer yet; and 2 more") && !trouble.contains("f:"), "{trouble}");
    }
}
