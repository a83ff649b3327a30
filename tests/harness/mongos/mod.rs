//! A mongos simulator: speaks MongoDB's wire protocol in front of two real mongods.
//!
//! A real mongos does so in front of its shards, but no package registry has a mongos.
//!
//! It answers `hello` like a mongos, knows the sharded collections (`catalog`), sends each statement to the
//! shard of its shard key and statements without a key to all shards (`target`, `writes`, `reads`), refuses
//! what a mongos refuses, and records the shards of each statement (`record`). It also refuses whatever it
//! cannot do like a mongos: it is never silently wrong.
//!
//! Differences from a mongos: its hash is not MongoDB's; it has no chunks, balancer, config servers or
//! versions of routing tables; no other command runs while it shards a collection; `explain`, transactions,
//! authentication and compression are missing.
//!
//! This folder uses nothing else of the harness, like `mongod.rs`.

mod catalog;
mod commands;
mod cursors;
mod ddl;
mod reads;
mod record;
mod sort;
mod target;
mod wire;
mod writes;

use std::net::SocketAddr;
use std::sync::Arc;

use bson::{Document, doc};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::RwLock;
use tokio::task::JoinHandle;

use self::catalog::Catalog;
use self::commands::Session;
use self::cursors::Cursors;
use self::record::Record;
pub(crate) use self::record::{Recorded, Verb};
use self::wire::Shards;
use super::Mongod;

/// The number of shards.
pub(crate) const SHARDS: usize = 2;

/// The shard of unsharded collections.
const PRIMARY_SHARD: usize = 0;

/// Two shards with simulated mongoses in front of them.
pub(crate) struct Cluster {
    shards: Vec<Mongod>,
    shared: Arc<Shared>,
    /// The runtime of the mongoses; `None` only during drop.
    ///
    /// On it, they answer while a test blocks its own threads.
    runtime: Option<Runtime>,
}

/// The state that the mongoses of a cluster share. A real cluster keeps it on config servers.
struct Shared {
    shards: Shards,
    /// Locked for writing while a collection is sharded.
    catalog: RwLock<Catalog>,
    record: Record,
    /// The limits and versions of the shards from their `hello`.
    limits: Document,
}

/// Whether the users of a mongos may shard collections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Sharding {
    Allowed,
    Forbidden,
}

/// A simulated mongos of a [`Cluster`]. It ends when this is dropped.
pub(crate) struct Mongos {
    /// Its address.
    pub(crate) address: SocketAddr,
    listening: JoinHandle<()>,
}

impl Cluster {
    /// Starts the shards.
    pub(crate) fn start() -> Self {
        let shards: Vec<Mongod> = (0..SHARDS).map(|_| Mongod::start()).collect();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let addresses = shards.iter().map(|shard| SocketAddr::from(([127, 0, 0, 1], shard.port))).collect();
        let links = Shards::new(addresses);
        let (links, hello) = super::blocking(async {
            let hello = links.call(PRIMARY_SHARD, doc! { "hello": 1, "$db": "admin" }).await;
            links.hang_up();
            (links, hello)
        });
        let shared =
            Shared { shards: links, catalog: RwLock::default(), record: Record::default(), limits: limits_in(&hello) };
        Self { shards, shared: Arc::new(shared), runtime: Some(runtime) }
    }

    /// Starts a mongos.
    pub(crate) fn start_mongos(&self, sharding: Sharding) -> Mongos {
        let shared = Arc::clone(&self.shared);
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("a socket");
        let listen = async move {
            let listener = TcpListener::from_std(listener).expect("a socket");
            let cursors = Arc::new(Cursors::new());
            let mut sessions = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while sessions.try_join_next().is_some() {}
                let session = Session { shared: Arc::clone(&shared), cursors: Arc::clone(&cursors), sharding };
                sessions.spawn(serve(stream, session));
            }
        };
        let runtime = self.runtime.as_ref().expect("not dropped yet");
        Mongos { address, listening: runtime.spawn(listen) }
    }

    /// The URI of a shard, without a database name.
    pub(crate) fn shard_uri(&self, shard: usize) -> &str {
        self.shards[shard].uri()
    }

    /// A shard, so that a test can kill and restart it.
    pub(crate) fn shard_mut(&mut self, shard: usize) -> &mut Mongod {
        &mut self.shards[shard]
    }

    /// The statements for a database in the order of their routing.
    pub(crate) fn record_of(&self, database: &str) -> Vec<Recorded> {
        self.shared.record.of(database)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Mongos {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// The URI of mongoses of one cluster, without a database name.
pub(crate) fn uri_of<'a>(mongoses: impl IntoIterator<Item = &'a Mongos>) -> String {
    let addresses: Vec<String> = mongoses.into_iter().map(|mongos| mongos.address.to_string()).collect();
    format!("mongodb://{}/", addresses.join(","))
}

/// Answers one connection until it ends.
async fn serve(mut stream: TcpStream, session: Session) {
    while let Ok(request) = wire::read(&mut stream).await {
        let reply = session.answer(request.command).await;
        if request.wants_reply && wire::write(&mut stream, request.id, &reply).await.is_err() {
            return;
        }
    }
}

fn limits_in(hello: &Document) -> Document {
    let fields = ["maxBsonObjectSize", "maxMessageSizeBytes", "maxWriteBatchSize", "minWireVersion", "maxWireVersion"];
    fields.into_iter().map(|field| (field.to_owned(), hello[field].clone())).collect()
}
