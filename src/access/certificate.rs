//! The content of a client certificate.

use crate::model::{DeviceIdCase, DevicePattern, check_device_id};

/// The content of a client certificate that the TLS layer has verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The device IDs in its names, each as a pattern of this one ID.
    devices: Vec<DevicePattern>,
    not_after_ms: i64,
}

impl Certificate {
    /// A certificate that is valid up to and including `not_after_ms` (Unix milliseconds).
    ///
    /// Names that are not device IDs are ignored. A `*` in a name is a character.
    #[must_use]
    pub fn new<'n>(names: impl IntoIterator<Item = &'n str>, not_after_ms: i64) -> Self {
        let mut devices: Vec<DevicePattern> = Vec::new();
        for name in names.into_iter().filter(|name| check_device_id(name).is_ok()) {
            let device = DevicePattern::one_id(name);
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        Self { devices, not_after_ms }
    }

    /// The device IDs in its names, in the case of stored IDs.
    pub(super) fn devices(&self, case: DeviceIdCase) -> Vec<DevicePattern> {
        self.devices.iter().map(|device| device.in_case(case)).collect()
    }

    /// Whether it has expired at `now_ms`. It was valid at the start of the connection.
    pub(super) const fn is_over(&self, now_ms: i64) -> bool {
        self.not_after_ms < now_ms
    }
}
