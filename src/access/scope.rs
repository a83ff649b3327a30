//! Which devices somebody reaches.

use std::borrow::Cow;

use crate::model::{DEVICE_ID_MAX_BYTES, DeviceIdCase, DevicePattern};

/// Which devices somebody reaches, and how their ids look from there.
///
/// A prefix makes a tenant: it stands before each id as it is kept, and its owner neither sees nor writes it.
/// Whatever an owner writes as an id (`../`, the prefix of somebody else) is put behind the owner's prefix,
/// and so stays inside. Patterns are about ids as the owner writes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceScope {
    prefix: String,
    /// `None`: every device behind the prefix.
    patterns: Option<Vec<DevicePattern>>,
}

/// A device is out of reach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceScopeError {
    /// It is none of those that the patterns name.
    #[error("device \"{0}\" is none of those that the token or certificate is for")]
    Forbidden(String),
    /// With the prefix its id would be too long. How long the prefix is, its tenant is not told.
    #[error("the device id is too long: it has {0} bytes")]
    TooLong(usize),
}

/// Devices that follow each other in the order of their ids, as they are kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdRange {
    /// What all their ids start with.
    pub prefix: String,
    /// Whether it is only the device that has this very id.
    pub is_one_id: bool,
}

impl IdRange {
    /// Whether a device that is kept as `id` is one of them.
    #[must_use]
    pub fn holds(&self, id: &str) -> bool {
        if self.is_one_id { id == self.prefix } else { id.starts_with(&self.prefix) }
    }
}

impl DeviceScope {
    /// Everything, under its own name.
    #[must_use]
    pub fn all() -> &'static Self {
        static ALL: DeviceScope = DeviceScope::new(String::new(), None);
        &ALL
    }

    /// The devices behind `prefix`, of those that match one of `patterns` if there are any. Both are in the
    /// case in which ids are kept.
    #[must_use]
    pub const fn new(prefix: String, patterns: Option<Vec<DevicePattern>>) -> Self {
        Self { prefix, patterns }
    }

    /// The devices behind `prefix`, of those that match one of `devices` if there are any, both as an
    /// operator writes them.
    #[must_use]
    pub fn of(devices: Option<&[DevicePattern]>, prefix: Option<&str>, case: DeviceIdCase) -> Self {
        let patterns = devices.map(|patterns| patterns.iter().map(|pattern| pattern.in_case(case)).collect());
        Self::new(case.apply(prefix.unwrap_or_default()).into_owned(), patterns)
    }

    /// The same, of the devices whose ids are among `devices`: patterns of one id each, as the owner writes
    /// it.
    #[must_use]
    pub fn narrowed_to(&self, devices: &[DevicePattern]) -> Self {
        let in_reach = devices.iter().filter(|device| self.matches(device.start())).cloned().collect();
        Self { prefix: self.prefix.clone(), patterns: Some(in_reach) }
    }

    /// The id under which a device is kept, of an id that is one by itself.
    ///
    /// # Errors
    /// When the device is out of reach.
    pub fn to_stored_id<'a>(&self, id: &'a str) -> Result<Cow<'a, str>, DeviceScopeError> {
        if !self.matches(id) {
            return Err(DeviceScopeError::Forbidden(id.to_owned()));
        }
        if self.prefix.is_empty() {
            return Ok(Cow::Borrowed(id));
        }
        if self.prefix.len() + id.len() > DEVICE_ID_MAX_BYTES {
            return Err(DeviceScopeError::TooLong(id.len()));
        }
        Ok(Cow::Owned(self.with_prefix(id)))
    }

    /// How its owner writes the id of a device that is kept as `id`; `None` when the device is out of reach.
    #[must_use]
    pub fn to_client_id<'a>(&self, id: &'a str) -> Option<&'a str> {
        id.strip_prefix(self.prefix.as_str()).filter(|id| self.matches(id))
    }

    /// Where something of an owner's (the start of an id, a place between ids) lies among the ids that are
    /// kept.
    #[must_use]
    pub fn with_prefix(&self, text: &str) -> String {
        format!("{}{text}", self.prefix)
    }

    /// Where all devices lie that are in reach and whose ids, as their owner writes them, start with `start`:
    /// in order, none of them twice. Others may lie between them.
    #[must_use]
    pub fn ranges(&self, start: &str) -> Vec<IdRange> {
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

    /// Whether there is nothing to take off and nobody to leave out.
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
        DeviceScope::new(prefix.to_owned(), (!patterns.is_empty()).then_some(patterns))
    }

    fn ranges(patterns: &[&str], start: &str) -> Vec<(String, bool)> {
        scope("t/", patterns).ranges(start).into_iter().map(|range| (range.prefix, range.is_one_id)).collect()
    }

    #[test]
    fn a_tenant_stays_behind_its_prefix_whatever_it_writes() {
        let acme = scope("acme/", &[]);
        for id in ["pump", "../other/pump", "acme/pump", "other/pump", "/", "."] {
            let kept = acme.to_stored_id(id).unwrap();
            assert!(kept.starts_with("acme/") && acme.to_client_id(&kept) == Some(id), "{id}");
        }
        assert_eq!(acme.to_client_id("other/pump"), None);
        assert_eq!(acme.to_stored_id(&"x".repeat(124)), Err(DeviceScopeError::TooLong(124)));
        assert_eq!(acme.to_stored_id(&"x".repeat(123)).unwrap().len(), 128);
    }

    #[test]
    fn patterns_are_about_the_ids_that_the_owner_writes() {
        let lights = scope("acme/", &["LIGHT-*", "HALL"]);
        assert_eq!(lights.to_stored_id("LIGHT-1").unwrap(), "acme/LIGHT-1");
        assert_eq!(lights.to_stored_id("PUMP-1"), Err(DeviceScopeError::Forbidden("PUMP-1".to_owned())));
        assert_eq!(lights.to_stored_id("acme/LIGHT-1"), Err(DeviceScopeError::Forbidden("acme/LIGHT-1".to_owned())));
        assert_eq!((lights.to_client_id("acme/HALL"), lights.to_client_id("acme/PUMP")), (Some("HALL"), None));
    }

    #[test]
    fn nothing_is_copied_for_somebody_who_reaches_everything() {
        assert!(matches!(DeviceScope::all().to_stored_id("pump"), Ok(Cow::Borrowed("pump"))));
        assert!(DeviceScope::all().is_all() && !scope("a", &[]).is_all() && !scope("", &["*"]).is_all());
    }

    #[test]
    fn spans_are_as_narrow_as_patterns_and_question_allow() {
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
        fn spans_hold_every_device_in_reach_once_and_in_order(
            patterns in prop::collection::vec("[ab*]{1,3}", 1..5), start in "[ab]{0,2}", ids in prop::collection::btree_set("[ab]{1,4}", 0..30)
        ) {
            let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
            let scope = scope("t/", &patterns);
            let in_span = |range: &IdRange, id: &&String| range.holds(&format!("t/{id}"));
            let found: Vec<&String> = scope
                .ranges(&start)
                .iter()
                .flat_map(|range| ids.iter().filter(|id| in_span(range, id)).collect::<Vec<_>>())
                .filter(|id| scope.to_client_id(&format!("t/{id}")).is_some())
                .collect();
            let expected: Vec<&String> = ids.iter().filter(|id| id.starts_with(&start) && scope.to_stored_id(id).is_ok()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
