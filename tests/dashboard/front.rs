//! An address that stays when a server starts again on another port.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::harness::Server;

pub(super) struct Front {
    address: SocketAddr,
    server: Arc<Mutex<SocketAddr>>,
}

impl Front {
    /// Forwards connections to a server.
    pub(super) async fn of(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let server = Arc::new(Mutex::new(server.http_addr()));
        let target = Arc::clone(&server);
        tokio::spawn(async move {
            loop {
                let (mut browser, _) = listener.accept().await.expect("it listens");
                let target = *target.lock().expect("no panic while it was held");
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(target).await else { return };
                    drop(copy_bidirectional(&mut browser, &mut server).await); // either side may close at any time
                });
            }
        });
        Self { address, server }
    }

    /// Forwards new connections to a server that was started again.
    pub(super) fn lead_to(&self, server: &Server) {
        *self.server.lock().expect("no panic while it was held") = server.http_addr();
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}
