//! `loadtest bare`: an axum server that only reads the body, to compare with.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use tokio::net::TcpListener;

pub(crate) async fn serve(listen: SocketAddr) -> anyhow::Result<()> {
    let answer = async |_body: Bytes| r#"{"accepted":1}"#;
    let router = Router::new().route("/v1/readings", post(answer));
    axum::serve(TcpListener::bind(listen).await?, router).await?;
    Ok(())
}
