//! Requests as new users write them, by hand or with their programs: stored is what was meant.
//!
//! Each test sends such a request and looks at what is stored. A server that misunderstands one of them
//! answers with success and stores something else: these are the requests where that is easiest. They are not
//! what the documentation recommends.

mod json;
mod line_protocol;

use serde_json::Value;

use crate::harness::Server;

/// The readings of a device as `ts metric=value ...`, with times in Unix milliseconds, and metrics in order.
async fn stored(server: &Server, device: &str) -> Vec<String> {
    let readings = server.readings(device).await;
    readings.as_array().expect("readings").iter().map(as_text).collect()
}

fn as_text(reading: &Value) -> String {
    let ts: jiff::Timestamp = reading["ts"].as_str().expect("a time").parse().expect("RFC 3339");
    let values = reading["values"].as_object().expect("values").iter();
    let values: Vec<_> = values.map(|(metric, value)| format!("{metric}={value}")).collect();
    format!("{} {}", ts.as_millisecond(), values.join(" "))
}

/// The metadata of a device.
async fn metadata(server: &Server, device: &str) -> Value {
    server.get_json(&format!("/v1/devices?prefix={device}")).await["devices"][0]["metadata"].take()
}
