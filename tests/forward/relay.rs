//! A TCP relay in front of a server: its address stays the same while the server restarts at another one, and
//! it can break all connections.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running relay.
#[derive(Debug)]
pub(crate) struct Relay {
    url: String,
    /// The server, and the number of times that the connections were broken.
    target: watch::Sender<(Option<SocketAddr>, u64)>,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// Starts a relay whose server is away.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it listens"));
        let target = watch::Sender::new((None, 0));
        let of_connections = target.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, of_connections.subscribe()));
            }
        });
        Self { url, target, accepting }
    }

    /// The URL of the server.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Relays further connections to this server, or to none. Breaks the others.
    pub(crate) fn lead_to(&self, server: Option<SocketAddr>) {
        self.target.send_modify(|(target, breaks)| (*target, *breaks) = (server, *breaks + 1));
    }

    /// Breaks all connections.
    pub(crate) fn break_connections(&self) {
        self.target.send_modify(|(_, breaks)| *breaks += 1);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn relay(mut client: TcpStream, mut target: watch::Receiver<(Option<SocketAddr>, u64)>) {
    let (Some(server), _) = *target.borrow_and_update() else { return };
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = target.changed() => {}
    }
}
