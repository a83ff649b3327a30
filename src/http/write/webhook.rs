//! Webhooks: the paths of the configuration that take payloads of other platforms.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, State};
use axum::http::{HeaderMap, Uri};
use axum::routing::{MethodRouter, post};
use axum::{Extension, Json};

use super::readings::{Accepted, answer};
use super::receive::{IngestRequest, receive_readings};
use crate::access::Grant;
use crate::config::{self, DevicePlace};
use crate::http::App;
use crate::http::problem::Problem;
use crate::http::request::params::Params;
use crate::ingest::Admission;
use crate::wire::webhook::{self, Address, Hook};
use crate::wire::{Code, Format};

/// A webhook: its path, and how to read its payloads.
#[derive(Debug, Clone)]
pub struct Webhook {
    pub(in crate::http) path: String,
    hook: Arc<Hook>,
    /// The query parameter that has the device ID; `None`: no parameter has it.
    device_parameter: Option<String>,
    /// The query parameters that are allowed and have no effect.
    ignored_parameters: Vec<String>,
}

impl Webhook {
    /// Makes a webhook from its section of the configuration.
    #[must_use]
    pub fn new(webhook: &config::Webhook) -> Self {
        let with_preset = webhook.with_preset();
        let device_parameter = match with_preset.device {
            Some(DevicePlace::Parameter(name)) => Some(name),
            _ => None,
        };
        let mut ignored_parameters = with_preset.parameters.unwrap_or_default();
        ignored_parameters.retain(|name| Some(name) != device_parameter.as_ref());
        let (path, hook) = (with_preset.path.as_str().to_owned(), Arc::new(Hook::new(webhook)));
        Self { path, hook, device_parameter, ignored_parameters }
    }
}

/// The handler of a webhook, by its index in the configuration.
pub(in crate::http) fn webhook(number: usize) -> MethodRouter<Arc<App>> {
    post(
        async move |State(app): State<Arc<App>>,
                    Extension(grant): Extension<Arc<Grant>>,
                    segments: Result<RawPathParams, RawPathParamsRejection>,
                    uri: Uri,
                    headers: HeaderMap,
                    body: Body| {
            let webhook = &app.formats.webhooks[number];
            let segments = segments.map_err(|error| Problem::invalid_parameter("deviceId", error.body_text()))?;
            let segment = segments.iter().next().map(|(_, device)| device.to_owned());
            receive(&app, &grant, webhook, segment, &uri, &headers, body).await
        },
    )
}

/// Stores the readings of a payload.
///
/// The media type has no meaning: the configuration says how to read the payload.
async fn receive(
    app: &Arc<App>,
    grant: &Arc<Grant>,
    webhook: &Webhook,
    segment: Option<String>,
    uri: &Uri,
    headers: &HeaderMap,
    body: Body,
) -> Result<Json<Accepted>, Problem> {
    let mut params = Params::of_any(uri);
    let partial = params.boolean("partial", true)?;
    let device = match &webhook.device_parameter {
        Some(name) => params.one(name)?.map(std::borrow::Cow::into_owned),
        None => segment,
    };
    for name in &webhook.ignored_parameters {
        params.ignore(name);
    }
    params.end()?;
    let hook = Arc::clone(&webhook.hook);
    let parse = move |_: &App, bytes: &[u8], admission: &mut Admission<'_>| {
        webhook::parse(bytes, &hook, &Address::of(device.as_deref()), admission)
            .map_err(|error| (Code::InvalidJson, Problem::invalid_json(&error)))
    };
    let request = IngestRequest { app, grant, format: Format::Webhook, headers, body, partial };
    answer(receive_readings(request, parse).await?.receipt, partial)
}
