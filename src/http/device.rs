//! Device ids in paths and parameters.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use super::App;
use super::problem::Problem;
use crate::model::check_device_id;

/// A device id from a path, checked, and as it is kept.
#[derive(Debug)]
pub(super) struct DeviceInPath(pub(super) String);

impl FromRequestParts<Arc<App>> for DeviceInPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        let Path(device) = path.map_err(|error| Problem::invalid_parameter("deviceId", error.body_text()))?;
        Ok(Self(device_of(app, "deviceId", &device)?))
    }
}

/// A device id from the parameter `name`, checked, and as it is kept.
pub(super) fn device_of(app: &App, name: &str, device: &str) -> Result<String, Problem> {
    check_device_id(device).map_err(|error| Problem::invalid_parameter(name, error))?;
    Ok(app.device_id_case.apply(device).into_owned())
}
