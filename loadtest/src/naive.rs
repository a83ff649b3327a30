//! `loadtest naive`: a simple service in front of MongoDB, to compare with.
//!
//! It sends a MongoDB command for each request, and answers when MongoDB has acknowledged the command. It
//! stores a resent reading twice.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use bson::{DateTime, Document, doc};
use clap::ValueEnum;
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection};
use serde::Deserialize;
use tokio::net::TcpListener;

/// The way in which the service stores a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// Insert a document
    Insert,
    /// Push it into the document of its device and hour
    Push,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The address to listen on
    #[arg(long)]
    listen: SocketAddr,
    /// The MongoDB server
    #[arg(long)]
    mongodb_uri: String,
    /// How to store a reading
    #[arg(long, value_enum)]
    way: Way,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reading {
    device_id: String,
    ts: i64,
    value: f64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Body {
    One(Reading),
    Many(Vec<Reading>),
}

pub(crate) async fn serve(args: &Args) -> anyhow::Result<()> {
    let mut options = ClientOptions::parse(&args.mongodb_uri).await?;
    options.max_pool_size = Some(64);
    let database = Client::with_options(options)?.database("naive");
    let collection: Collection<Document> = database.collection("readings");
    let router = Router::new().route("/v1/readings", post(take)).with_state(Arc::new((collection, args.way)));
    axum::serve(TcpListener::bind(args.listen).await?, router).await?;
    Ok(())
}

async fn take(State(naive): State<Arc<(Collection<Document>, Way)>>, body: axum::body::Bytes) -> (StatusCode, String) {
    let readings = match serde_json::from_slice(&body) {
        Ok(Body::One(reading)) => vec![reading],
        Ok(Body::Many(readings)) => readings,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()),
    };
    let accepted = readings.len();
    match store(&naive.0, naive.1, readings).await {
        Ok(()) => (StatusCode::OK, format!("{{\"accepted\":{accepted}}}")),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn store(collection: &Collection<Document>, way: Way, readings: Vec<Reading>) -> mongodb::error::Result<()> {
    match way {
        Way::Insert => {
            let document = |reading: Reading| {
                let ts = DateTime::from_millis(reading.ts);
                doc! { "deviceId": reading.device_id, "ts": ts, "value": reading.value }
            };
            collection.insert_many(readings.into_iter().map(document)).await?;
        }
        Way::Push => {
            for reading in readings {
                let hour = reading.ts - reading.ts.rem_euclid(3_600_000);
                let filter = doc! { "_id": format!("{}/{hour}", reading.device_id) };
                let update = doc! {
                    "$push": { "readings": { "ts": DateTime::from_millis(reading.ts), "value": reading.value } },
                    "$inc": { "count": 1, "sum": reading.value },
                    "$min": { "min": reading.value },
                    "$max": { "max": reading.value },
                };
                collection.update_one(filter, update).upsert(true).await?;
            }
        }
    }
    Ok(())
}
