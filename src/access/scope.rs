//! The devices of a grant, and the mapping between client IDs and stored IDs.

use std::borrow::Cow;

use crate::model::{DEVICE_ID_MAX_BYTES, DeviceIdCase, DeviceIdError, DevicePattern, check_device_id};

/// The devices of a grant, and the mapping of their IDs.
///
/// A prefix makes a tenant. With the prefix `acme/`, the client ID `pump-1` is the stored ID `acme/pump-1`.
/// Every client ID gets the prefix, even `../x` and the prefix of another tenant, so no client leaves its
/// tenant. Patterns apply to client IDs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceScope {
    case: DeviceIdCase,
    prefix: String,
    /// The patterns of the covered client IDs. `None`: all devices with the prefix.
    patterns: Option<Vec<DevicePattern>>,
}

/// A client ID has no stored ID in a scope, so the client may not use the device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceScopeError {
    /// The client ID is not a valid device ID.
    #[error(transparent)]
    Invalid(#[from] DeviceIdError),
    /// No pattern matches the client ID.
    #[error("the token, key or certificate does not cover device \"{0}\"")]
    Forbidden(String),
    /// The ID with the prefix is too long.
    ///
    /// The text gives the length without the prefix, which the tenant does not see.
    #[error("the device id is too long: it has {0} bytes")]
    TooLong(usize),
}

/// A range of stored IDs: all with a prefix, or a single one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdRange {
    /// The start of all stored IDs in the range.
    pub prefix: String,
    /// Whether the range has one stored ID only: the prefix itself.
    pub is_one_id: bool,
}

impl IdRange {
    /// Whether this stored ID is in the range.
    #[must_use]
    pub fn holds(&self, id: &str) -> bool {
        if self.is_one_id { id == self.prefix } else { id.starts_with(&self.prefix) }
    }
}

impl DeviceScope {
    /// The scope of all devices, in which client IDs and stored IDs are the same.
    #[must_use]
    pub fn all() -> &'static Self {
        static ALL: DeviceScope = DeviceScope::new(DeviceIdCase::Preserve, String::new(), None);
        &ALL
    }

    /// The devices with `prefix` whose client IDs match one of `patterns`.
    ///
    /// `None`: all devices with the prefix. The prefix and the patterns are in the case of stored IDs.
    #[must_use]
    pub const fn new(case: DeviceIdCase, prefix: String, patterns: Option<Vec<DevicePattern>>) -> Self {
        Self { case, prefix, patterns }
    }

    /// The same as [`Self::new`], for patterns and a prefix from the configuration.
    ///
    /// It applies the case of stored IDs to them.
    #[must_use]
    pub fn of(case: DeviceIdCase, devices: Option<&[DevicePattern]>, prefix: Option<&str>) -> Self {
        let patterns = devices.map(|patterns| patterns.iter().map(|pattern| pattern.in_case(case)).collect());
        Self::new(case, case.apply(prefix.unwrap_or_default()).into_owned(), patterns)
    }

    /// This scope, but only for those of its devices that are among `devices`.
    ///
    /// Each of these patterns matches one client ID.
    #[must_use]
    pub fn narrowed_to(&self, devices: &[DevicePattern]) -> Self {
        let covered = devices.iter().filter(|device| self.matches(device.start())).cloned().collect();
        Self { patterns: Some(covered), prefix: self.prefix.clone(), ..*self }
    }

    /// Checks a client ID, and returns it in the case of stored IDs.
    ///
    /// The result has no prefix, so it is still a client ID.
    ///
    /// # Errors
    /// When the client ID is not a valid device ID.
    pub fn normalize<'a>(&self, client_id: &'a str) -> Result<Cow<'a, str>, DeviceIdError> {
        check_device_id(client_id)?;
        Ok(self.case.apply(client_id))
    }

    /// The stored ID of a client ID.
    ///
    /// The result borrows `client_id` if both are the same text.
    ///
    /// # Errors
    /// When the client ID is not a valid device ID, the scope does not cover the device, or the stored ID
    /// would be too long.
    pub fn to_stored_id<'a>(&self, client_id: &'a str) -> Result<Cow<'a, str>, DeviceScopeError> {
        let id = self.normalize(client_id)?;
        if !self.matches(&id) {
            return Err(DeviceScopeError::Forbidden(id.into_owned()));
        }
        if self.prefix.is_empty() {
            return Ok(id);
        }
        if self.prefix.len() + id.len() > DEVICE_ID_MAX_BYTES {
            return Err(DeviceScopeError::TooLong(id.len()));
        }
        Ok(Cow::Owned(self.with_prefix(&id)))
    }

    /// The client ID of a stored ID; `None` if the scope does not cover the device.
    ///
    /// A client without a prefix may write the stored IDs `acme/` and `acme/..`. In the tenant `acme/` their
    /// client IDs would be an empty text and `..`, which are not valid. So the tenant does not see these
    /// devices.
    #[must_use]
    pub fn to_client_id<'a>(&self, stored_id: &'a str) -> Option<&'a str> {
        let is_id = |id: &&str| self.prefix.is_empty() || check_device_id(id).is_ok();
        self.without_prefix(stored_id).filter(is_id).filter(|id| self.matches(id))
    }

    /// The stored ID without the prefix; `None` if it does not begin with the prefix.
    ///
    /// It does not check whether the scope covers the device.
    #[must_use]
    pub fn without_prefix<'a>(&self, stored_id: &'a str) -> Option<&'a str> {
        stored_id.strip_prefix(self.prefix.as_str())
    }

    /// Puts the prefix before the start of a client ID, or before a cursor.
    ///
    /// With the prefix `acme/`, the text `pump` becomes `acme/pump`. The result can be compared with stored
    /// IDs.
    #[must_use]
    pub fn with_prefix(&self, text: &str) -> String {
        format!("{}{text}", self.prefix)
    }

    /// The ranges of stored IDs in which to look for devices of this scope.
    ///
    /// They contain all covered devices whose client IDs begin with `start`, and may contain devices that the
    /// scope does not cover. The ranges are in order and do not overlap.
    #[must_use]
    pub fn ranges(&self, start: &str) -> Vec<IdRange> {
        let start = &*self.case.apply(start);
        let range = |start: &str, is_one_id| IdRange { prefix: self.with_prefix(start), is_one_id };
        let Some(patterns) = &self.patterns else { return vec![range(start, false)] };
        let narrow = |pattern: &DevicePattern| match pattern.start() {
            of_pattern if of_pattern.starts_with(start) => Some(range(of_pattern, pattern.is_one_id())),
            of_pattern if start.starts_with(of_pattern) && !pattern.is_one_id() => Some(range(start, false)),
            _ => None,
        };
        let mut ranges: Vec<IdRange> = patterns.iter().filter_map(narrow).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| if last.is_one_id { next == last } else { next.prefix.starts_with(&last.prefix) });
        ranges
    }

    /// Whether the scope covers all devices and has no prefix.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.prefix.is_empty() && self.patterns.is_none()
    }

    fn matches(&self, id: &str) -> bool {
        self.patterns.as_ref().is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(id)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scope(prefix: &str, patterns: &[&str]) -> DeviceScope {
        let patterns: Vec<_> = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
        let patterns = (!patterns.is_empty()).then_some(patterns);
        DeviceScope::new(DeviceIdCase::Preserve, prefix.to_owned(), patterns)
    }

    fn ranges(patterns: &[&str], start: &str) -> Vec<(String, bool)> {
        scope("t/", patterns).ranges(start).into_iter().map(|range| (range.prefix, range.is_one_id)).collect()
    }

    #[test]
    fn no_client_id_leaves_the_prefix_of_its_tenant() {
        let acme = scope("acme/", &[]);
        for id in ["pump", "../other/pump", "acme/pump", "other/pump", "/"] {
            let stored = acme.to_stored_id(id).unwrap();
            assert!(stored.starts_with("acme/") && acme.to_client_id(&stored) == Some(id), "{id}");
        }
        assert_eq!(acme.to_stored_id("."), Err(DeviceScopeError::Invalid(DeviceIdError::Dots)));
        assert_eq!(["other/pump", "acme/", "acme/ x", "acme/.."].map(|id| acme.to_client_id(id)), [None; 4]);
        assert_eq!(acme.to_stored_id(&"x".repeat(124)), Err(DeviceScopeError::TooLong(124)));
        assert_eq!(acme.to_stored_id(&"x".repeat(123)).unwrap().len(), 128);
    }

    #[test]
    fn patterns_apply_to_client_ids() {
        let lights = scope("acme/", &["LIGHT-*", "HALL"]);
        assert_eq!(lights.to_stored_id("LIGHT-1").unwrap(), "acme/LIGHT-1");
        assert_eq!(lights.to_stored_id("PUMP-1"), Err(DeviceScopeError::Forbidden("PUMP-1".to_owned())));
        assert_eq!(lights.to_stored_id("acme/LIGHT-1"), Err(DeviceScopeError::Forbidden("acme/LIGHT-1".to_owned())));
        assert_eq!((lights.to_client_id("acme/HALL"), lights.to_client_id("acme/PUMP")), (Some("HALL"), None));
    }

    #[test]
    fn ids_are_checked_and_their_case_applied_before_patterns_and_prefix() {
        let patterns = vec!["light-*".parse().unwrap()];
        let lower = DeviceScope::new(DeviceIdCase::Lower, "acme/".to_owned(), Some(patterns));
        assert_eq!(lower.to_stored_id("LIGHT-1").unwrap(), "acme/light-1");
        assert_eq!(lower.to_stored_id("PUMP-1"), Err(DeviceScopeError::Forbidden("pump-1".to_owned())));
        assert_eq!(lower.to_stored_id("light 1 "), Err(DeviceScopeError::Invalid(DeviceIdError::Space)));
        assert_eq!(lower.ranges("LIGHT-1"), [IdRange { prefix: "acme/light-1".to_owned(), is_one_id: false }]);
    }

    #[test]
    fn a_scope_of_all_devices_copies_nothing() {
        assert!(matches!(DeviceScope::all().to_stored_id("pump"), Ok(Cow::Borrowed("pump"))));
        assert!(DeviceScope::all().is_all() && !scope("a", &[]).is_all() && !scope("", &["*"]).is_all());
    }

    #[test]
    fn ranges_are_as_narrow_as_patterns_and_start_allow() {
        let of = |text: &str, is_one_id| (text.to_owned(), is_one_id);
        assert_eq!(ranges(&[], "x"), [of("t/x", false)]);
        assert_eq!(ranges(&["LIGHT-*", "PUMP-7"], ""), [of("t/LIGHT-", false), of("t/PUMP-7", true)]);
        assert_eq!(ranges(&["LIGHT-*", "PUMP-7"], "LIGHT-4"), [of("t/LIGHT-4", false)]);
        assert_eq!(ranges(&["LIGHT-*", "PUMP-7"], "PUMP"), [of("t/PUMP-7", true)]);
        assert_eq!(ranges(&["LIGHT-*", "PUMP-7"], "PUMP-77"), []);
        assert_eq!(ranges(&["a*", "ab*", "abc", "a"], ""), [of("t/a", false)]);
        assert_eq!(ranges(&["ab", "ab", "abc"], ""), [of("t/ab", true), of("t/abc", true)]);
    }

    proptest! {
        #[test]
        fn ranges_hold_every_covered_device_once_and_in_order(
            patterns in prop::collection::vec("[ab*]{1,3}", 1..5),
            start in "[ab]{0,2}",
            ids in prop::collection::btree_set("[ab]{1,4}", 0..30),
        ) {
            let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
            let scope = scope("t/", &patterns);
            let in_range = |range: &IdRange, id: &&String| range.holds(&format!("t/{id}"));
            let found: Vec<&String> = scope
                .ranges(&start)
                .iter()
                .flat_map(|range| ids.iter().filter(|id| in_range(range, id)).collect::<Vec<_>>())
                .filter(|id| scope.to_client_id(&format!("t/{id}")).is_some())
                .collect();
            let is_expected = |id: &&String| id.starts_with(&start) && scope.to_stored_id(id).is_ok();
            let expected: Vec<&String> = ids.iter().filter(is_expected).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
