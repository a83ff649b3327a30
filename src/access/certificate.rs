//! What a client certificate says.

use crate::model::{DeviceIdCase, DevicePattern, check_device_id};

/// What a client certificate says of its owner, when somebody else has found it to be good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The ids that it names, each a pattern that only this id matches.
    devices: Vec<DevicePattern>,
    not_after_ms: i64,
}

impl Certificate {
    /// Of the names in a certificate, those that are device ids count. Nothing in a name stands for anything
    /// else: `*` is no part of an id. It is good up to and including `not_after_ms` (Unix milliseconds).
    #[must_use]
    pub fn new<'n>(names: impl IntoIterator<Item = &'n str>, not_after_ms: i64) -> Self {
        let mut devices: Vec<DevicePattern> = Vec::new();
        for name in names.into_iter().filter(|name| check_device_id(name).is_ok()) {
            devices.extend(name.parse().ok().filter(|device| !devices.contains(device)));
        }
        Self { devices, not_after_ms }
    }

    /// The ids that it names, as they are kept.
    pub(super) fn devices(&self, case: DeviceIdCase) -> Vec<DevicePattern> {
        self.devices.iter().map(|device| device.in_case(case)).collect()
    }

    /// Whether it was good only before `now_ms`. It was when the connection began.
    pub(super) const fn is_over(&self, now_ms: i64) -> bool {
        self.not_after_ms < now_ms
    }
}
