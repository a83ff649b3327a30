//! `GET /version`: the version of the program, and the ID of its store.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::App;
use crate::http::openapi::{Operation, Tag};
use crate::telemetry::REVISION;

/// The program that runs, and its store.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Version)]
pub(in crate::http) struct Build {
    /// The name of the program.
    name: &'static str,
    /// The version of the program.
    version: &'static str,
    /// The commit that the program was built from.
    revision: &'static str,
    /// The ID of the store. All instances that share a store show the same.
    ///
    /// It is absent until the store has answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    store_id: Option<String>,
}

/// Describes `GET /version`.
pub(in crate::http) fn describe() -> Operation {
    Operation::get(Tag::Operation, "getVersion", "The version of the program").answers::<Build>(200, "The version.")
}

/// `GET /version`
pub(in crate::http) async fn version(State(app): State<Arc<App>>) -> Json<Build> {
    let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let store_id = app.store_id.borrow().clone();
    Json(Build { name, version, revision: REVISION, store_id })
}
