//! Authorization: tokens, tenants, signed datagrams, and attacks.

mod attacks;
mod commands;
mod datagrams;
mod devices;
mod keys;
pub(crate) mod reload;
mod tenants;
mod tokens;

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Server, Setup, secret_of, wait_for};

const RANGE: &str = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";
const TS: &str = "2024-04-20T14:00:10Z";

/// A server with a token for the harness itself.
fn setup() -> Setup {
    Setup::sqlite().token("operator", "scopes = ['admin']")
}

/// `GET`s a path with the token of this name.
async fn get(server: &Server, name: &str, path: &str) -> Answer {
    server.send(server.request(Method::GET, path).bearer_auth(secret_of(name))).await
}

/// The same, and expects JSON with status 200. It repeats the request while the store is unavailable.
async fn get_json(server: &Server, name: &str, path: &str) -> Value {
    let answer = wait_for(path, async || get(server, name, path).await.unless_unavailable()).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

/// `POST`s a body with the token of this name.
async fn post(server: &Server, name: &str, path: &str, content_type: &str, body: impl Into<String>) -> Answer {
    let request = server.request(Method::POST, path).bearer_auth(secret_of(name));
    server.send(request.header("content-type", content_type).body(body.into())).await
}

/// `POST`s readings as JSON.
async fn ingest(server: &Server, name: &str, readings: &Value) -> Answer {
    post(server, name, "/v1/readings", "application/json", readings.to_string()).await
}

/// One reading of a device.
fn reading(device: &str, value: f64) -> Value {
    json!({ "deviceId": device, "ts": TS, "value": value })
}

/// Asserts the status and the code of an answer.
#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some(code)), "{}", answer.text());
}

/// The IDs of the devices that a token lists.
async fn devices(server: &Server, name: &str, params: &str) -> Vec<String> {
    ids(&get_json(server, name, &format!("/v1/devices?{params}")).await)
}

fn ids(answer: &Value) -> Vec<String> {
    let devices = answer["devices"].as_array().expect("devices");
    devices.iter().map(|device| device["deviceId"].as_str().expect("an id").to_owned()).collect()
}
