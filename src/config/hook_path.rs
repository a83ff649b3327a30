//! The path of a webhook, such as `/hooks/tts/{deviceId}`.

use std::fmt;

/// The longest path of a hook, in bytes.
const PATH_MAX_BYTES: usize = 128;

/// The placeholder for the device ID, in paths of hooks and in MQTT topics.
pub const DEVICE_SEGMENT: &str = "{deviceId}";

/// The paths of the server's own routes. No hook may overlap them.
pub const OWN_PATHS: [&str; 29] = [
    "/v1/readings",
    "/v1/dead-letters",
    "/v1/time",
    "/v1/rollups",
    "/v1/latest",
    "/v1/devices",
    "/v1/devices/{deviceId}",
    "/v1/devices/{deviceId}/rollups",
    "/v1/devices/{deviceId}/readings",
    "/v1/devices/{deviceId}/latest",
    "/v1/devices/{deviceId}/metadata",
    "/v1/metadata",
    "/write",
    "/api/v2/write",
    "/api/v3/write_lp",
    "/api/v1/write",
    "/api/v1/read",
    "/v1/metrics",
    "/query",
    "/ping",
    "/health",
    "/metrics",
    "/metrics/latest",
    "/healthz",
    "/readyz",
    "/version",
    "/",
    "/dashboard/{version}/{file}",
    "/v1/openapi.json",
];

/// The first segments of paths that are reserved for routes of the server.
const OWN_FOLDERS: [&str; 2] = ["v1", "dashboard"];

/// The path of a hook, such as `/hooks/tts` or `/hooks/tts/{deviceId}`.
///
/// Its segments have the characters `A-Z a-z 0-9 . _ ~ -`. One segment may be `{deviceId}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookPath(String);

impl HookPath {
    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the path has the segment `{deviceId}`.
    #[must_use]
    pub fn has_device(&self) -> bool {
        self.0.split('/').any(|segment| segment == DEVICE_SEGMENT)
    }

    /// Whether one URL can match both paths, such as `/a/{deviceId}` and `/a/b`.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        overlap(&self.0, &other.0)
    }
}

/// Whether one URL can match both paths, such as `/a/{deviceId}` and `/a/b`.
fn overlap(one: &str, other: &str) -> bool {
    let is_variable = |segment: &str| segment.starts_with('{');
    one.split('/').count() == other.split('/').count()
        && one
            .split('/')
            .zip(other.split('/'))
            .all(|(one, other)| one == other || is_variable(one) || is_variable(other))
}

impl std::str::FromStr for HookPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |segment: &str| {
            let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
            !matches!(segment, "" | "." | "..") && segment.bytes().all(is_name_byte)
        };
        let segments = || text.split('/').skip(1);
        let variables = segments().filter(|segment| *segment == DEVICE_SEGMENT).count();
        let is_path = text.starts_with('/')
            && text.len() <= PATH_MAX_BYTES
            && variables <= 1
            && segments().all(|segment| segment == DEVICE_SEGMENT || is_plain(segment));
        if !is_path {
            return Err(format!(
                "expected a path like /hooks/name or /hooks/name/{DEVICE_SEGMENT}: at most {PATH_MAX_BYTES} bytes, \
                 segments of A-Z a-z 0-9 . _ ~ -"
            ));
        }
        if let Some(own) = OWN_PATHS.into_iter().find(|own| overlap(own, text)) {
            return Err(format!("{text} is a path of the server itself ({own})"));
        }
        match segments().next() {
            Some(first) if OWN_FOLDERS.contains(&first) => {
                Err(format!("the paths below /{first}/ belong to the server itself"))
            }
            _ => Ok(Self(text.to_owned())),
        }
    }
}

impl fmt::Display for HookPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
