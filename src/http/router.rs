//! The list of all routes, each with its handler, its access and its description.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::Uri;
use axum::middleware;
use axum::routing::{MethodRouter, delete, get, post, put};

use super::access::authorize::{Need, authorize};
use super::every_request::around_every_request;
use super::openapi::{self, Operation, Paths};
use super::operate::{deletion, health, metadata, metrics, time, version};
use super::problem::Problem;
use super::read::query_limits::limit_query;
use super::write::influx::Version;
use super::write::{dead_letters, influx, otlp, readings, remote_write, webhook};
use super::{App, dashboard, influxql, read};
use crate::config::{OWN_PATHS, Scope};

const INGEST: Need = Need::Scope(Scope::Ingest);
const QUERY: Need = Need::Scope(Scope::Query);
const METADATA: Need = Need::Scope(Scope::Metadata);
const ADMIN: Need = Need::Scope(Scope::Admin);

const METADATA_OF_DEVICE: &str = "/v1/devices/{deviceId}/metadata";

/// Makes the router of all routes, with answers for unknown paths and methods.
///
/// The routes of the webhooks come last.
pub(super) fn router(app: Arc<App>) -> Router {
    let routes = Routes::new(&app)
        .add(INGEST, "/v1/readings", post(readings::readings), [readings::describe()])
        .add(ADMIN, "/v1/dead-letters", post(dead_letters::repeat), [dead_letters::describe()])
        .add(Need::AnyToken, "/v1/time", get(time::time), [time::describe()])
        .add_query("/v1/readings", get(read::readings_of_devices), read::describe_readings_of_devices())
        .add_query("/v1/rollups", get(read::rollups_of_devices), read::describe_rollups_of_devices())
        .add_query("/v1/latest", get(read::latest_of_devices), read::describe_latest_of_devices())
        .add_query("/v1/devices", get(read::devices), read::describe_devices())
        .add_query("/v1/devices/{deviceId}", get(read::device), read::describe_device())
        .add_query("/v1/devices/{deviceId}/rollups", get(read::rollups), read::describe_rollups())
        .add_query("/v1/devices/{deviceId}/readings", get(read::readings), read::describe_readings())
        .add_query("/v1/devices/{deviceId}/latest", get(read::latest), read::describe_latest())
        .add(QUERY, METADATA_OF_DEVICE, get(metadata::get), [metadata::describe_get()])
        .add(METADATA, METADATA_OF_DEVICE, put(metadata::change).patch(metadata::change), metadata::describe_changes())
        .add(QUERY, "/v1/metadata", get(metadata::list), [metadata::describe_list()])
        .add(METADATA, "/v1/metadata", post(metadata::post), [metadata::describe_post()])
        .add(ADMIN, "/v1/devices/{deviceId}", delete(deletion::device), [deletion::describe_device()])
        .add(ADMIN, "/v1/devices/{deviceId}/readings", delete(deletion::readings), [deletion::describe_readings()])
        .add_write("/write", Version::V1)
        .add_write("/api/v2/write", Version::V2)
        .add_write("/api/v3/write_lp", Version::V3)
        .add(Need::RemoteWrite, "/api/v1/write", post(remote_write::write), [remote_write::describe()])
        .add(QUERY, "/api/v1/read", post(read::remote_read), [read::describe_remote_read()])
        .add(Need::Otlp, "/v1/metrics", post(otlp::metrics), [otlp::describe()])
        .add(Need::InfluxQl, "/query", get(influxql::query).post(influxql::query), influxql::describe())
        .add(Need::Health, "/ping", get(influx::ping), [influx::describe_ping()])
        .add(Need::Health, "/health", get(influx::health), [influx::describe_health()])
        .add(Need::Metrics, "/metrics", get(metrics::metrics), [metrics::describe()])
        .add_query("/metrics/latest", get(read::latest_metrics), read::describe_latest_metrics())
        .add(Need::Health, "/healthz", get(health::healthz), [health::describe_healthz()])
        .add(Need::Health, "/readyz", get(health::readyz), [health::describe_readyz()])
        .add(Need::AnyToken, "/version", get(version::version), [version::describe()])
        .add(Need::Nothing, "/", get(dashboard::page), [dashboard::describe_page()])
        .add(Need::Nothing, "/dashboard/{version}/{file}", get(dashboard::file), [dashboard::describe_file()])
        .add_document(Need::AnyToken, "/v1/openapi.json");
    debug_assert_eq!(routes.paths, OWN_PATHS, "no webhook may have a path of the server itself");
    let with_hooks = (0..app.formats.webhooks.len()).fold(routes, |routes, number| {
        let path = app.formats.webhooks[number].path.clone();
        routes.add(Need::Webhook, &path, webhook::webhook(number), [])
    });
    with_hooks
        .router
        .fallback(async |uri: Uri| Problem::not_found(uri.path()))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(middleware::from_fn_with_state(app.clone(), around_every_request))
        .with_state(app)
}

/// The routes that were added so far, each with its [`Need`] and description.
struct Routes {
    app: Arc<App>,
    router: Router<Arc<App>>,
    paths: Vec<String>,
    descriptions: Paths,
}

impl Routes {
    fn new(app: &Arc<App>) -> Self {
        Self { app: Arc::clone(app), router: Router::new(), paths: Vec::new(), descriptions: Paths::default() }
    }

    /// Adds a route of a query, which waits for a place among the running queries.
    fn add_query(self, path: &str, methods: MethodRouter<Arc<App>>, operation: Operation) -> Self {
        let limited = methods.route_layer(middleware::from_fn_with_state(Arc::clone(&self.app), limit_query));
        self.add(QUERY, path, limited, [operation])
    }

    /// Adds the write path of a version of `InfluxDB`.
    fn add_write(self, path: &str, version: Version) -> Self {
        let operation = influx::describe_write(version);
        self.add(Need::InfluxWrite(version), path, influx::write(version), [operation])
    }

    /// Adds the route of the OpenAPI document.
    ///
    /// The document describes the routes that were added before, and itself.
    fn add_document(mut self, need: Need, path: &str) -> Self {
        self.descriptions.add(need, path, [openapi::describe()], &self.app.limits);
        let document = Bytes::from(self.descriptions.to_json().to_string());
        let methods = get(async move || openapi::respond(document));
        self.add(need, path, methods, [openapi::describe()])
    }

    /// Adds a route with a description of each method.
    ///
    /// Only a webhook has no `operations`, because the configuration names its path.
    fn add<const N: usize>(
        mut self,
        need: Need,
        path: &str,
        methods: MethodRouter<Arc<App>>,
        operations: [Operation; N],
    ) -> Self {
        if !self.paths.iter().any(|known| known == path) {
            self.paths.push(path.to_owned()); // a path may have a route for each method
        }
        let conformance = Arc::new(self.descriptions.add(need, path, operations, &self.app.limits));
        let state = (Arc::clone(&self.app), need);
        let mut guarded = methods.route_layer(middleware::from_fn_with_state(state, authorize));
        if cfg!(debug_assertions) && N > 0 {
            guarded = guarded.route_layer(middleware::from_fn_with_state(conformance, openapi::check));
        }
        Self { router: self.router.route(path, guarded), ..self }
    }
}
