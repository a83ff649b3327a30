//! The dead-letter file: readings that the store refuses for good.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::model::{BucketWrite, Metric};

/// Appends refused buckets to a file, one JSON object a line, with the reason. A line has the shape of the ingest API
/// (`deviceId`, `metadata`, `readings`), so that what was mended can be sent again with `tidegauge import`.
#[derive(Debug, Clone)]
pub struct DeadLetters {
    path: Arc<PathBuf>,
    file: Arc<Mutex<Option<File>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    refused_at: String,
    reason: &'a str,
    detail: &'a str,
    device_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a serde_json::value::RawValue>,
    readings: Vec<LineReading>,
}

#[derive(Serialize)]
struct LineReading {
    ts: i64,
    values: BTreeMap<Metric, f64>,
}

impl DeadLetters {
    /// The file is made when the first reading is refused.
    pub fn new(path: PathBuf) -> Self {
        Self { path: Arc::new(path), file: Arc::default() }
    }

    /// Appends a bucket. When this returns, the line survives a crash.
    pub(super) async fn append(
        &self,
        write: &Arc<BucketWrite>,
        reason: &'static str,
        detail: &str,
    ) -> std::io::Result<()> {
        let (this, write, detail) = (self.clone(), Arc::clone(write), detail.to_owned());
        let appended = tokio::task::spawn_blocking(move || this.append_now(&write, reason, &detail)).await;
        appended.unwrap_or_else(|error| Err(std::io::Error::other(error)))
    }

    fn append_now(&self, write: &BucketWrite, reason: &str, detail: &str) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(&line(write, reason, detail))?;
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let open = match file.take() {
            Some(open) => open,
            None => OpenOptions::new().create(true).append(true).open(&*self.path)?,
        };
        let mut open = &*file.insert(open);
        open.write_all(&line)?;
        open.sync_data()
    }
}

fn line<'a>(write: &'a BucketWrite, reason: &'a str, detail: &'a str) -> Line<'a> {
    let contents = &write.contents;
    let readings = contents.readings().map(|reading| LineReading {
        ts: write.hour.instant_ms(reading.offset),
        values: reading.samples.iter().map(|sample| (contents.metric_of(sample).clone(), sample.value)).collect(),
    });
    Line {
        refused_at: jiff::Timestamp::now().to_string(),
        reason,
        detail,
        device_id: &write.device,
        metadata: write.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        readings: readings.collect(),
    }
}
