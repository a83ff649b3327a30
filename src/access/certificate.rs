//! The device IDs and the expiry of a client certificate.

use crate::model::{DeviceIdCase, DevicePattern, check_device_id};

/// The device IDs and the expiry of a client certificate that TLS has verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// A pattern for each name that is a device ID. The pattern matches only this ID.
    devices: Vec<DevicePattern>,
    not_after_ms: i64,
}

impl Certificate {
    /// A certificate with these names, valid until `not_after_ms` (Unix milliseconds).
    ///
    /// Names that are not device IDs are ignored. A `*` in a name is an ordinary character.
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

    /// The patterns of the certificate's device IDs, in the case of stored IDs.
    pub(super) fn devices(&self, case: DeviceIdCase) -> Vec<DevicePattern> {
        self.devices.iter().map(|device| device.in_case(case)).collect()
    }

    /// Whether the certificate has expired at `now_ms`.
    ///
    /// TLS checks the expiry only at the start of a connection, which may last longer.
    #[must_use]
    pub const fn is_over(&self, now_ms: i64) -> bool {
        self.not_after_ms < now_ms
    }
}
