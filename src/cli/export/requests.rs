//! The requests of an export to the server.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tidegauge::client::{Client, Download, Options, TimeLimit, Trouble, retry};

use super::super::Usage;
use super::super::client::ClientArgs;

/// How long the server may send nothing.
///
/// The server's own time limit for one slice of a file is shorter.
const SILENCE: Duration = Duration::from_secs(120);

/// How long a request is repeated while the server cannot answer it.
const RETRY_FOR: Duration = Duration::from_secs(120);

/// The path of the list of devices.
const DEVICES: &str = "/v1/devices";

/// The size limit of a page of devices, with their metadata.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// Sends requests to one server.
pub(super) struct Requests {
    client: Client,
    /// Whether standard error says already that the file lacks what operators have set.
    is_noted: Cell<bool>,
}

/// A page of devices.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page {
    pub(super) devices: Vec<Listed>,
    /// The cursor of the next page.
    pub(super) next: Option<String>,
    /// Whether devices may be missing, because the store did not answer.
    #[serde(default)]
    partial: bool,
    /// `Some`: readings acknowledged within these seconds may be missing, and devices that sent only these.
    lagging_seconds: Option<f64>,
}

/// A device of a page.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    pub(super) device_id: String,
    /// The newest metadata that the device has sent: a JSON object in one line.
    pub(super) metadata: Option<Box<RawValue>>,
}

/// The metadata of a device, by author: operators, and the device itself.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ByAuthors {
    set_by_operators: Box<RawValue>,
    sent_by_device: Option<Box<RawValue>>,
}

impl Requests {
    pub(super) fn to(server: &ClientArgs) -> anyhow::Result<Self> {
        let client = Client::new(Options { time_limit: TimeLimit::Silence(SILENCE), ..server.options()? })?;
        Ok(Self { client, is_noted: Cell::new(false) })
    }

    /// A page of the devices that `selection` selects, in the order of their IDs.
    pub(super) async fn devices(&self, selection: &[(&str, &str)], after: Option<&str>) -> anyhow::Result<Page> {
        let params = selection.iter().copied().chain(after.map(|after| ("cursor", after)));
        let params = params.collect::<Vec<_>>();
        let mut page = repeat(|| self.page(&params)).await?;
        if page.partial {
            bail!("the store of the server does not answer, so the list of devices is not complete");
        }
        self.leave_out_operators(&mut page.devices).await?;
        Ok(page)
    }

    async fn page(&self, params: &[(&str, &str)]) -> Result<Page, Trouble> {
        let answer = self.client.get(DEVICES, params).await?.whole(MAX_PAGE_BYTES).await?;
        let page: Page = serde_json::from_slice(&answer)
            .map_err(|error| self.trouble(DEVICES, format!("the list of devices: {error}")))?;
        self.check_lag(DEVICES, page.lagging_seconds)?;
        Ok(page)
    }

    /// Replaces the metadata in effect by what the device has sent.
    ///
    /// An import sends metadata in the name of the device. So a key of operators would stay when an operator
    /// removes it, and their keys and those of the device may be too long for a reading.
    async fn leave_out_operators(&self, devices: &mut [Listed]) -> anyhow::Result<()> {
        for Listed { device_id, metadata } in devices {
            if metadata.is_none() {
                continue;
            }
            let path = format!("/v1/devices/{}/metadata", utf8_percent_encode(device_id, NON_ALPHANUMERIC));
            let answer = self.get(&path, &[]).await?.whole(MAX_PAGE_BYTES).await?;
            let ByAuthors { set_by_operators, sent_by_device } =
                serde_json::from_slice(&answer).context("the metadata of a device")?;
            if set_by_operators.get() != "{}" {
                *metadata = sent_by_device;
                if !self.is_noted.replace(true) {
                    eprintln!(
                        "tidegauge: the file has the metadata that devices have sent; copy what operators have set \
                         with GET and POST /v1/metadata"
                    );
                }
            }
        }
        Ok(())
    }

    /// Sends a request for a file, and repeats it while the server refuses it temporarily or lags.
    pub(super) async fn get(&self, path: &str, params: &[(&str, &str)]) -> anyhow::Result<Download> {
        repeat(|| self.file(path, params)).await
    }

    async fn file(&self, path: &str, params: &[(&str, &str)]) -> Result<Download, Trouble> {
        let answer = self.client.get(path, params).await?;
        self.check_lag(path, answer.lagging_seconds())?;
        Ok(answer)
    }

    /// Fails if an answer may lack acknowledged readings, such as those that wait because pending is full.
    fn check_lag(&self, path: &str, lagging_seconds: Option<f64>) -> Result<(), Trouble> {
        let Some(seconds) = lagging_seconds else { return Ok(()) };
        let mut trouble = self.trouble(path, format!("readings of the last {seconds:.1} s may be missing"));
        trouble.reason = "unavailable";
        trouble.is_for_good = false;
        Err(trouble)
    }

    fn trouble(&self, path: &str, said: String) -> Trouble {
        Trouble::unexpected(&format!("{}{path}", self.client.url()), said)
    }
}

/// Repeats a request while the server cannot answer it completely.
async fn repeat<T, F: Future<Output = Result<T, Trouble>>>(request: impl FnMut() -> F) -> anyhow::Result<T> {
    let is_said = Cell::new(false);
    let on_trouble = |trouble: &Trouble| {
        if !is_said.replace(true) {
            eprintln!("tidegauge: {trouble}; trying again");
        }
    };
    let answer = retry(RETRY_FOR, on_trouble, request).await;
    answer.map_err(
        |trouble| {
            if trouble.is_bad_request() { Usage(trouble.to_string()).into() } else { anyhow!(trouble) }
        },
    )
}
