//! Does tidegauge have exactly what it acknowledged?

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::client::Client;
use crate::format::device_id;
use crate::http::Sending;
use crate::workload::Share;

const HOUR_MS: u64 = 3_600_000;

/// What a comparison found.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Verified {
    pub(crate) devices: u64,
    /// Readings that these devices should have.
    pub(crate) readings: u64,
    /// Devices of which the rollups differ.
    pub(crate) wrong: u64,
}

/// Count, minimum, maximum and sum of an hour.
type Fold = (u64, f64, f64, f64);

/// Compares the hourly rollups of `sample` devices, evenly spread, with those of the readings that were acknowledged:
/// so many messages on each connection.
pub(crate) async fn verify(sending: &Sending, messages: &[u64], sample: u64) -> anyhow::Result<Verified> {
    let mut client = Client::connect(&sending.address).await?;
    let mut verified = Verified { devices: 0, readings: 0, wrong: 0 };
    let devices = sending.workload.devices;
    let stride = (devices / sample.clamp(1, devices)) as usize;
    for (nth, &messages) in messages.iter().enumerate() {
        let share = sending.workload.share(nth as u64, sending.connections);
        for device in share.devices().step_by(stride) {
            let expected = expected(&share, device, messages);
            let (from, to) = (sending.workload.first_ms, share.last_ms(messages) + HOUR_MS);
            let path = sending.target.rollup_path(&[device], from, to);
            let (status, answer) = client.get(&path).await?;
            ensure!(status == 200, "{path}: status {status}: {}", String::from_utf8_lossy(answer));
            let found = found(answer).with_context(|| path.clone())?;
            verified.devices += 1;
            verified.readings += expected.values().map(|fold| fold.0).sum::<u64>();
            if found != expected {
                verified.wrong += 1;
                eprintln!("{} differs: expected {expected:?}, found {found:?}", device_id(device));
            }
        }
    }
    Ok(verified)
}

fn expected(share: &Share, device: u64, messages: u64) -> BTreeMap<u64, Fold> {
    let mut hours: BTreeMap<u64, Fold> = BTreeMap::new();
    for reading in share.sent(device, messages) {
        let (count, min, max, sum) =
            hours.entry(reading.ts_ms / HOUR_MS).or_insert((0, f64::INFINITY, f64::NEG_INFINITY, 0.0));
        *count += 1;
        *min = min.min(reading.value);
        *max = max.max(reading.value);
        *sum += reading.value; // quarters of small numbers: exact in whatever order
    }
    hours
}

fn found(answer: &[u8]) -> anyhow::Result<BTreeMap<u64, Fold>> {
    let answer: Value = serde_json::from_slice(answer)?;
    let series: Vec<&Value> = answer["metrics"].as_object().context("no metrics")?.values().collect();
    ensure!(series.len() <= 1, "more than one metric");
    let hours = series.first().and_then(|series| series.as_array()).map(Vec::as_slice).unwrap_or_default();
    let hours = hours.iter().map(|hour| {
        let number = |field: &str| hour[field].as_f64().with_context(|| format!("no {field}"));
        let ts: jiff::Timestamp = hour["ts"].as_str().context("no ts")?.parse()?;
        let hour_of = u64::try_from(ts.as_millisecond())? / HOUR_MS;
        Ok((hour_of, (number("count")? as u64, number("min")?, number("max")?, number("sum")?)))
    });
    hours.collect()
}
