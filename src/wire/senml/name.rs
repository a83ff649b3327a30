//! Names: their check, and their split into device and metric.

use crate::common::work;
use crate::model::{DEVICE_ID_MAX_BYTES, METRIC_MAX_BYTES};
use crate::wire::{
    Code, Rejection,
    problem::{Parsed, quoted, rejection},
};

/// The longest name: a device, a separator, a metric, and a separator at the end.
pub(super) const MAX_NAME_BYTES: usize = DEVICE_ID_MAX_BYTES + METRIC_MAX_BYTES + 2;

/// The split of a `SenML` name into device and metric, at its last separator.
///
/// The default separators are `/` and `:`, so that `2001:db8::2/temperature` is metric `temperature` of
/// device `2001:db8::2`. Separators at the end of a name are dropped. A name without separators is a device,
/// without a metric.
///
/// The prefix of a URN is never a device, so the separators in `urn:uuid:` and, for device URNs (RFC 9039),
/// in `urn:dev:ow:` do not count: `urn:dev:ow:10e2073a01080063` is a device, and
/// `urn:dev:ow:10e2073a01080063:temp` is its metric `temp`. A name that is an IPv6 address is split, though:
/// configure `/` alone for such names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameSplit {
    /// A bit for each ASCII character; names have no others.
    separators: u128,
}

impl Default for NameSplit {
    fn default() -> Self {
        Self::at("/:")
    }
}

impl NameSplit {
    /// Splits names at the last of these characters.
    ///
    /// Without characters, each name is a device.
    pub fn at(separators: &str) -> Self {
        let ascii = separators.bytes().filter(u8::is_ascii);
        Self { separators: ascii.fold(0, |separators, byte| separators | 1 << byte) }
    }

    const fn is_separator(self, byte: u8) -> bool {
        byte.is_ascii() && self.separators >> byte & 1 == 1
    }

    /// The device and the metric of a name. The metric is `None` if the name has none.
    pub(super) fn split(self, name: &str) -> (&str, Option<&str>) {
        let end = name.bytes().rposition(|byte| !self.is_separator(byte)).map_or(0, |last| last + 1);
        let (name, start) = (&name[..end], namespace_length(&name[..end]));
        let found = name.as_bytes()[start..].iter().rposition(|&byte| self.is_separator(byte));
        work::count(end - found.unwrap_or_default());
        match found {
            Some(at) => (&name[..start + at], Some(&name[start + at + 1..])),
            None => (name, None),
        }
    }
}

/// The length of the prefix `urn:dev:<type>:` or `urn:<namespace>:`.
///
/// 0: the name is not a URN.
fn namespace_length(name: &str) -> usize {
    let starts_with = |prefix: &str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let colons = match (starts_with("urn:dev:"), starts_with("urn:")) {
        (true, _) => 3,
        (_, true) => 2,
        _ => return 0,
    };
    name.match_indices(':').nth(colons - 1).map_or(name.len(), |(at, _)| at + 1)
}

/// Whether a name has no separator at all.
///
/// Its split has this `device` and no metric.
pub(super) fn is_plain(name: &str, device: &str) -> bool {
    device.len() == name.len() && namespace_length(name) == 0
}

/// Checks a name (RFC 8428, section 4.5.1).
///
/// Its first `checked` bytes are known to be valid.
pub(super) fn check_name(name: &str, checked: usize) -> Parsed<()> {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b':' | b'.' | b'/' | b'_');
    work::count(name.len() - checked);
    match name.as_bytes() {
        [] => Err(rejection(Code::MissingDeviceId, "there is no \"bn\" and no \"n\"")),
        bytes if bytes[0].is_ascii_alphanumeric() && bytes[checked..].iter().copied().all(is_inner) => Ok(()),
        _ => {
            let rule = "is made of A-Z a-z 0-9 - : . / _ and starts with a letter or digit";
            Err(rejection(Code::InvalidDeviceId, format!("a name {rule}, unlike {}", quoted(name))))
        }
    }
}

/// The rejection of a name that is longer than [`MAX_NAME_BYTES`].
#[cold]
pub(super) fn too_long(bytes: usize) -> Rejection {
    let limit = format!("a name, \"bn\" + \"n\", has at most {MAX_NAME_BYTES} bytes, this has {bytes}");
    rejection(Code::InvalidDeviceId, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_split_at_its_last_separator() {
        for (name, device, metric) in [
            ("pump", "pump", None),
            ("pump/", "pump", None),
            ("pump::/", "pump", None),
            ("pump/temp", "pump", Some("temp")),
            ("pump:temp", "pump", Some("temp")),
            ("site/pump:temp", "site/pump", Some("temp")),
            ("site:pump/temp/", "site:pump", Some("temp")),
            ("2001:db8::2/temperature", "2001:db8::2", Some("temperature")),
            ("2001:db8::3", "2001:db8:", Some("3")),
        ] {
            assert_eq!(NameSplit::default().split(name), (device, metric), "{name}");
        }
    }

    #[test]
    fn a_urn_is_not_split_within_its_namespace() {
        for (name, device, metric) in [
            ("urn:dev:ow:10e2073a01080063", "urn:dev:ow:10e2073a01080063", None),
            ("urn:dev:ow:10e2073a01080063:", "urn:dev:ow:10e2073a01080063", None),
            ("urn:dev:ow:10e2073a01080063:temp", "urn:dev:ow:10e2073a01080063", Some("temp")),
            ("URN:DEV:mac:0024befffe804ff1/a/b", "URN:DEV:mac:0024befffe804ff1/a", Some("b")),
            ("urn:uuid:f81d4fae-7dec-11d0", "urn:uuid:f81d4fae-7dec-11d0", None),
            ("urn:uuid:f81d4fae-7dec-11d0:temp", "urn:uuid:f81d4fae-7dec-11d0", Some("temp")),
            ("urn:dev:ow", "urn:dev:ow", None),
            ("urn:", "urn", None),
            ("urns:x", "urns", Some("x")),
        ] {
            assert_eq!(NameSplit::default().split(name), (device, metric), "{name}");
        }
    }

    #[test]
    fn the_separators_are_configurable() {
        assert_eq!(NameSplit::at("/").split("2001:db8::3"), ("2001:db8::3", None));
        assert_eq!(NameSplit::at("/").split("a:b/c:"), ("a:b", Some("c:")));
        assert_eq!(NameSplit::at("._").split("urn:dev:ow:10e2_temp"), ("urn:dev:ow:10e2", Some("temp")));
        assert_eq!(NameSplit::at("").split("a:b/c"), ("a:b/c", None));
    }

    #[test]
    fn a_name_has_the_characters_of_the_rfc() {
        for name in ["a", "0", "Z-:./_9"] {
            assert_eq!(check_name(name, 0), Ok(()));
        }
        assert_eq!(check_name("", 0).unwrap_err().code, Code::MissingDeviceId);
        for name in ["-a", "/3/0", "_", "a b", "a%", "ä", "aä"] {
            assert_eq!(check_name(name, 0).unwrap_err().code, Code::InvalidDeviceId, "{name}");
        }
    }
}
