//! A router for tests: it speaks MongoDB's wire protocol in front of two real mongods, as a mongos does in
//! front of its shards, because no registry has a mongos.
//!
//! It says of itself what a mongos says (`hello`), keeps which collections are sharded (`catalog`), sends
//! each statement to the shard that its shard key hashes to, and to all where there is none (`target`,
//! `writes`, `reads`), refuses what a mongos refuses, and records where everything went (`record`). What it
//! cannot do as a mongos would, it refuses too: it is never silently wrong.
//!
//! What it is not: its hash is not MongoDB's; there are no chunks, no balancer, no config servers and no
//! versions of routing tables; a collection is split in one instant, while nothing else happens; `explain`,
//! transactions, authentication and compression are missing.
//!
//! This folder stands alone, as `mongod.rs` does.

mod catalog;
mod commands;
mod cursors;
mod ddl;
mod order;
mod reads;
mod record;
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

/// How many shards there are.
pub(crate) const SHARDS: usize = 2;

/// The shard that holds what is not sharded.
const PRIMARY_SHARD: usize = 0;

/// Two shards, and routers in front of them.
pub(crate) struct Cluster {
    shards: Vec<Mongod>,
    shared: Arc<Shared>,
    /// Routers answer whatever the tests do with their own threads. `None` only while this is dropped.
    runtime: Option<Runtime>,
}

/// What the routers of a cluster know together: a real cluster has its config servers for that.
struct Shared {
    shards: Shards,
    /// Held for writing while a collection is split.
    catalog: RwLock<Catalog>,
    record: Record,
    /// What the shards say of their limits and versions.
    limits: Document,
}

/// Whether users of a router may shard collections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Sharding {
    Allowed,
    Forbidden,
}

/// A router of a [`Cluster`]. It ends when this is dropped.
pub(crate) struct Router {
    /// Where it listens.
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

    /// Starts a router.
    pub(crate) fn router(&self, sharding: Sharding) -> Router {
        let shared = Arc::clone(&self.shared);
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("a socket");
        let listen = async move {
            let listener = TcpListener::from_std(listener).expect("a socket");
            let cursors = Arc::new(Cursors::default());
            let mut sessions = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while sessions.try_join_next().is_some() {}
                let session = Session { shared: Arc::clone(&shared), cursors: Arc::clone(&cursors), sharding };
                sessions.spawn(serve(stream, session));
            }
        };
        let runtime = self.runtime.as_ref().expect("not dropped yet");
        Router { address, listening: runtime.spawn(listen) }
    }

    /// The URI of a shard, without a database name.
    pub(crate) fn shard_uri(&self, shard: usize) -> &str {
        self.shards[shard].uri()
    }

    /// A shard, to be killed and started again.
    pub(crate) fn shard_mut(&mut self, shard: usize) -> &mut Mongod {
        &mut self.shards[shard]
    }

    /// What was done in a database, in the order in which it was routed.
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

impl Drop for Router {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// The URI of some routers of one cluster, without a database name.
pub(crate) fn uri_of<'a>(routers: impl IntoIterator<Item = &'a Router>) -> String {
    let addresses: Vec<String> = routers.into_iter().map(|router| router.address.to_string()).collect();
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
