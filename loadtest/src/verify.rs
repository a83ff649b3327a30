//! Checks that tidegauge has all acknowledged readings, and each of them once.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::client::Client;
use crate::format::device_id;
use crate::http::Sending;
use crate::workload::Share;

const HOUR_MS: u64 = 3_600_000;

/// The result of the comparison of rollups with sent readings.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Verified {
    pub(crate) devices: u64,
    /// The number of readings that these devices should have.
    pub(crate) readings: u64,
    /// The number of devices whose rollups differ from the sent readings.
    pub(crate) wrong: u64,
}

/// The stats of an hour of a device.
#[derive(Debug, Clone, Copy)]
struct Fold {
    count: u64,
    min: f64,
    max: f64,
    sum: f64,
}

impl PartialEq for Fold {
    /// Compares all fields exactly, except for the sum.
    ///
    /// A sum depends on the order in which its values are added.
    fn eq(&self, other: &Self) -> bool {
        let sums = (self.sum - other.sum).abs() <= self.sum.abs() * 1e-9;
        sums && (self.count, self.min.to_bits(), self.max.to_bits())
            == (other.count, other.min.to_bits(), other.max.to_bits())
    }
}

/// Compares the hourly rollups of some devices with the acknowledged readings.
///
/// `sample` devices are compared, evenly spread. Each of `parts` is a sending and the number of acknowledged
/// messages on each connection. All parts are to the same server and by the same devices. Hours before
/// `from_ms` are left out.
pub(crate) async fn verify(parts: &[(&Sending, &[u64])], sample: u64, from_ms: u64) -> anyhow::Result<Verified> {
    let (sending, messages) = parts.first().context("nothing was sent")?;
    let mut client = Client::connect(&sending.address).await?;
    let mut verified = Verified { devices: 0, readings: 0, wrong: 0 };
    let devices = sending.workload.devices;
    let stride = (devices / sample.clamp(1, devices)) as usize;
    for nth in 0..messages.len() {
        let shares = parts.iter().map(|(sending, messages)| {
            let share = sending.workload.share(nth as u64, sending.connections);
            (share, messages[nth])
        });
        let shares: Vec<(Share, u64)> = shares.collect();
        let last_ms = shares.iter().map(|(share, messages)| share.last_ms(*messages)).max();
        let (from, to) = (sending.workload.first_ms.max(from_ms), last_ms.unwrap_or(from_ms) + HOUR_MS);
        for device in shares[0].0.devices().step_by(stride) {
            let mut expected = expected(&shares, device);
            expected.retain(|&hour, _| hour >= from_ms / HOUR_MS);
            let path = sending.target.rollup_path(&[device], from, to).context("it has no rollups to compare with")?;
            let (status, answer) = client.get(&path).await?;
            ensure!(status == 200, "{path}: status {status}: {}", String::from_utf8_lossy(answer));
            let found = found(answer).with_context(|| path.clone())?;
            verified.devices += 1;
            verified.readings += expected.values().map(|fold| fold.count).sum::<u64>();
            if found != expected {
                verified.wrong += 1;
                eprintln!("{} differs: expected {expected:?}, found {found:?}", device_id(device));
            }
        }
    }
    Ok(verified)
}

fn expected(shares: &[(Share, u64)], device: u64) -> BTreeMap<u64, Fold> {
    let mut hours: BTreeMap<u64, Fold> = BTreeMap::new();
    for reading in shares.iter().flat_map(|(share, messages)| share.sent(device, *messages)) {
        let none = Fold { count: 0, min: f64::INFINITY, max: f64::NEG_INFINITY, sum: 0.0 };
        let fold = hours.entry(reading.ts_ms / HOUR_MS).or_insert(none);
        fold.count += 1;
        fold.min = fold.min.min(reading.value);
        fold.max = fold.max.max(reading.value);
        fold.sum += reading.value;
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
        let count = number("count")? as u64;
        Ok((hour_of, Fold { count, min: number("min")?, max: number("max")?, sum: number("sum")? }))
    });
    hours.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::extract::Path;
    use axum::routing::get;
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;
    use crate::format::Format;
    use crate::http::Until;
    use crate::target::Target;
    use crate::workload::{Kind, Reading, Values, Workload};

    const MESSAGES: [u64; 2] = [40, 30];

    fn sending(address: String) -> Sending {
        let workload = Workload {
            kind: Kind::Late,
            first_device: 0,
            devices: 10,
            step_ms: 60_000,
            batch: 50,
            late_percent: 10,
            resent_percent: 10,
            first_ms: 1_776_693_600_000,
            values: Values::Decimal,
        };
        let (target, format, until) = (Target::Tidegauge, Format::Json, Until::Messages(0));
        Sending { address, target, format, workload, connections: 2, rate: None, until }
    }

    /// Verifies a store of the acknowledged readings after `meddle` has changed them.
    async fn verified(meddle: impl FnOnce(&mut Vec<Reading>)) -> Verified {
        let mut stored = Vec::new();
        let sent = sending(String::new());
        for (nth, messages) in (0..).zip(MESSAGES) {
            let share = sent.workload.share(nth, 2);
            stored.extend(share.devices().flat_map(|device| share.sent(device, messages).collect::<Vec<_>>()));
        }
        meddle(&mut stored);
        let stored = Arc::new(stored);
        let answer = async move |Path(device): Path<String>| rollups(&stored, &device);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let router = Router::new().route("/v1/devices/{device}/rollups", get(answer));
        tokio::spawn(axum::serve(listener, router).into_future());
        verify(&[(&sending(address), &MESSAGES)], 10, 0).await.unwrap()
    }

    fn rollups(stored: &[Reading], device: &str) -> String {
        let mut hours: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for reading in stored.iter().filter(|reading| device_id(reading.device) == device) {
            hours.entry(reading.ts_ms / HOUR_MS).or_default().push(reading.value);
        }
        let hour = |(hour, values): (u64, Vec<f64>)| {
            let ts = jiff::Timestamp::from_millisecond((hour * HOUR_MS) as i64).unwrap().to_string();
            let (min, max) =
                (values.iter().copied().fold(f64::MAX, f64::min), values.iter().copied().fold(f64::MIN, f64::max));
            json!({ "ts": ts, "count": values.len(), "min": min, "max": max, "sum": values.iter().sum::<f64>() })
        };
        json!({ "metrics": { "value": hours.into_iter().map(hour).collect::<Vec<_>>() } }).to_string()
    }

    #[tokio::test]
    async fn what_is_there_once_is_right() {
        let verified = verified(|_| ()).await;
        assert_eq!((verified.devices, verified.wrong), (10, 0));
        assert!(verified.readings > 3_000, "{}", verified.readings);
    }

    #[tokio::test]
    async fn one_lost_reading_is_found() {
        assert_eq!(verified(|stored| stored.truncate(stored.len() - 1)).await.wrong, 1);
    }

    #[tokio::test]
    async fn one_reading_stored_twice_is_found() {
        assert_eq!(verified(|stored| stored.push(stored[1_234])).await.wrong, 1);
    }

    #[tokio::test]
    async fn one_changed_value_and_one_reading_of_another_hour_are_found() {
        let meddle = |stored: &mut Vec<Reading>| {
            stored[3].value += 0.25;
            stored.last_mut().unwrap().ts_ms += 24 * HOUR_MS;
        };
        assert_eq!(verified(meddle).await.wrong, 2);
    }
}
