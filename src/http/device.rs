//! The device id in a path.

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
        let refuse = |why: String| Problem::invalid_parameter("deviceId", why);
        let Path(device) =
            Path::<String>::from_request_parts(parts, app).await.map_err(|error| refuse(error.body_text()))?;
        check_device_id(&device).map_err(|error| refuse(error.to_string()))?;
        Ok(Self(app.device_id_case.apply(&device).into_owned()))
    }
}
