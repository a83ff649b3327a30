//! The device IDs of paths and parameters.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::access::{DeviceScope, Grant};
use crate::http::App;
use crate::http::problem::Problem;

/// The client ID in the path of a request, normalized.
#[derive(Debug)]
pub(in crate::http) struct DeviceInPath(pub(in crate::http) String);

impl FromRequestParts<Arc<App>> for DeviceInPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        let Path(device) = path.map_err(|error| Problem::invalid_parameter("deviceId", error.body_text()))?;
        let grant = Extension::<Arc<Grant>>::from_request_parts(parts, app).await;
        let Extension(grant) = grant.map_err(|error| Problem::internal(error.body_text()))?;
        Ok(Self(normalized(&grant.device_scope, "deviceId", &device)?))
    }
}

/// Normalizes the client ID of a device in the parameter `name`.
pub(in crate::http) fn normalized(scope: &DeviceScope, name: &str, device: &str) -> Result<String, Problem> {
    let device = scope.normalize(device).map_err(|error| Problem::invalid_parameter(name, error))?;
    Ok(device.into_owned())
}
