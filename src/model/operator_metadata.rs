//! Metadata that operators set, beside the metadata that devices send.
//!
//! **Two authors.** A key that an operator has set stays until the operator removes it. The device's own
//! value of this key is kept too, and takes effect again after the removal ([`OperatorMetadata::over`]).
//!
//! **Any order.** Each key is a last-writer-wins register: of two values, the one with the later instant
//! stays. A replacement removes all keys that were set before it. So changes may be merged in any order and
//! any number of times, by several instances and servers, always with the same result. A change has the same
//! type as the metadata: it has the keys that it sets and removes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The most removed keys that a store remembers for one device.
const MAX_REMOVED: usize = 64;

/// The most bytes in the names of these keys.
const MAX_REMOVED_BYTES: usize = 4_096;

/// The keys that operators have set for one device, or a change of these keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperatorMetadata {
    /// The instant of the last replacement, in Unix milliseconds. Keys that were set before are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_ms: Option<i64>,
    /// The keys that were set or removed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<String, OperatorKey>,
}

/// A key that was set or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperatorKey {
    /// The instant of the change, in Unix milliseconds.
    pub at_ms: i64,
    /// The value; `None`: the key was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

impl OperatorKey {
    /// Whether this change wins over `other`: the later change wins. Of two changes at the same instant, the
    /// one with the greater text wins, so that the order of merges does not matter.
    fn wins_over(&self, other: &Self) -> bool {
        let text = |key: &Self| key.value.as_ref().map(Value::to_string);
        self.at_ms > other.at_ms || (self.at_ms == other.at_ms && text(self) > text(other))
    }
}

impl OperatorMetadata {
    /// The change that replaces all keys by the keys of `object`.
    #[must_use]
    pub fn replacement(object: Map<String, Value>, at_ms: i64) -> Self {
        let set = |(key, value)| (key, OperatorKey { at_ms, value: Some(value) });
        Self { replaced_ms: Some(at_ms), keys: object.into_iter().map(set).collect() }
    }

    /// The change that a JSON merge patch (RFC 7396) makes to this metadata.
    ///
    /// The change has every key of the patch with its whole value, also if the key has this value already:
    /// another instance may be changing the key.
    #[must_use]
    pub fn patched(&self, patch: Map<String, Value>, at_ms: i64) -> Self {
        let mut change = Self::default();
        for (key, patch) in patch {
            let known = self.keys.get(&key).and_then(|known| known.value.clone());
            let value = if patch.is_null() { None } else { Some(merge_patch(known, patch)) };
            change.keys.insert(key, OperatorKey { at_ms, value });
        }
        change
    }

    /// Whether nothing was ever set or removed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.replaced_ms.is_none() && self.keys.is_empty()
    }

    /// Merges other changes into these.
    pub fn merge(&mut self, other: Self) {
        for (key, new) in other.keys {
            if self.keys.get(&key).is_none_or(|known| new.wins_over(known)) {
                self.keys.insert(key, new);
            }
        }
        self.replaced_ms = self.replaced_ms.max(other.replaced_ms);
        if let Some(replaced_ms) = self.replaced_ms {
            let stays = |key: &OperatorKey| key.at_ms > replaced_ms || key.at_ms == replaced_ms && key.value.is_some();
            self.keys.retain(|_, key| stays(key));
        }
    }

    /// Forgets the oldest removals beyond 64, or beyond 4 KiB of names.
    ///
    /// Call this on the metadata that a store keeps, and not on a change, which must reach the store whole.
    /// If a copy from before a forgotten removal is merged later, the key comes back.
    pub fn forget_old_removals(&mut self) {
        let removed = self.keys.iter().filter(|(_, key)| key.value.is_none());
        let mut removed: Vec<(i64, String)> = removed.map(|(key, of)| (of.at_ms, key.clone())).collect();
        removed.sort_unstable();
        let mut bytes = 0;
        let has_room = |(_, key): &&(i64, String)| {
            bytes += key.len();
            bytes <= MAX_REMOVED_BYTES
        };
        let kept = removed.iter().rev().take(MAX_REMOVED).take_while(has_room).count();
        for (_, key) in &removed[..removed.len() - kept] {
            self.keys.remove(key);
        }
    }

    /// The instant for a change after all changes here: `now_ms`, or just after the newest change if that is
    /// later.
    #[must_use]
    pub fn next_ms(&self, now_ms: i64) -> i64 {
        self.newest_ms().map_or(now_ms, |newest_ms| now_ms.max(newest_ms.saturating_add(1)))
    }

    /// The instant of the newest change in Unix milliseconds; `None` without changes.
    #[must_use]
    pub fn newest_ms(&self) -> Option<i64> {
        self.keys.values().map(|key| key.at_ms).chain(self.replaced_ms).max()
    }

    /// The keys that are set, with their values.
    #[must_use]
    pub fn object(&self) -> Map<String, Value> {
        let set = |(key, of): (&String, &OperatorKey)| Some((key.clone(), of.value.clone()?));
        self.keys.iter().filter_map(set).collect()
    }

    /// The metadata in effect: the keys that are set here, and the other keys of the device's own metadata,
    /// which is the text of a JSON object.
    #[must_use]
    pub fn over(&self, own: Option<&Arc<str>>) -> Option<Arc<str>> {
        let mut set = self.object();
        if set.is_empty() {
            return own.cloned();
        }
        let own: Map<String, Value> = own.and_then(|own| serde_json::from_str(own).ok()).unwrap_or_default();
        for (key, value) in own {
            set.entry(key).or_insert(value);
        }
        Some(Value::from(set).to_string().into())
    }
}

/// The result of a JSON merge patch (RFC 7396) that is not null. The recursion is as deep as metadata may be.
fn merge_patch(target: Option<Value>, patch: Value) -> Value {
    let Value::Object(patch) = patch else { return patch };
    let mut target = match target {
        Some(Value::Object(target)) => target,
        _ => Map::new(),
    };
    for (key, patch) in patch {
        let known = target.remove(&key);
        if !patch.is_null() {
            target.insert(key, merge_patch(known, patch));
        }
    }
    target.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(object) = value else { panic!("an object") };
        object
    }

    #[test]
    fn a_patch_is_applied_as_rfc_7396_says() {
        // The examples of its appendix whose target and patch are objects.
        for (target, patch, expected) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!({"a":"foo"}), json!({"b":[null]}), json!({"a":"foo","b":[null]})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ] {
            let mut metadata = OperatorMetadata::replacement(object(target.clone()), 1);
            metadata.merge(metadata.patched(object(patch.clone()), 2));
            assert_eq!(Value::from(metadata.object()), expected, "{target} {patch}");
        }
    }

    #[test]
    fn a_key_of_the_operator_stays_over_that_of_the_device_until_it_is_removed() {
        let own: Arc<str> = r#"{"name":"sensor","floor":1}"#.into();
        let effect = |metadata: &OperatorMetadata| metadata.over(Some(&own)).unwrap();
        let mut metadata = OperatorMetadata::default();
        assert_eq!(metadata.over(None), None);
        assert_eq!(effect(&metadata), own);
        metadata.merge(metadata.patched(object(json!({"name": "Press 3", "hall": {"n": 2}})), 5));
        assert_eq!(&*effect(&metadata), r#"{"floor":1,"hall":{"n":2},"name":"Press 3"}"#);
        assert_eq!(metadata.over(None).as_deref(), Some(r#"{"hall":{"n":2},"name":"Press 3"}"#));
        metadata.merge(metadata.patched(object(json!({"name": null, "hall": null})), 6));
        assert_eq!(effect(&metadata), own);
        assert!(metadata.patched(Map::new(), 7).is_empty());
    }

    #[test]
    fn the_oldest_removals_are_forgotten_and_nothing_else_changes() {
        let mut metadata = OperatorMetadata::replacement(object(json!({"stays": 1})), 1);
        for nth in 0..1_000 {
            for value in [json!(nth), Value::Null] {
                let patch = object(json!({ format!("k{nth}"): value }));
                metadata.merge(metadata.patched(patch, metadata.next_ms(0)));
                metadata.forget_old_removals();
                assert!(metadata.keys.len() <= MAX_REMOVED + 2, "{}", metadata.keys.len());
            }
        }
        assert_eq!(Value::from(metadata.object()), json!({"stays": 1}));
        assert_eq!((metadata.keys["stays"].at_ms, metadata.replaced_ms), (1, Some(1)), "nobody has touched it");
        assert!(metadata.keys.contains_key("k999") && !metadata.keys.contains_key("k900"));
        for nth in 0..10 {
            let patch = object(json!({ format!("{nth}{}", "x".repeat(999)): null }));
            metadata.merge(metadata.patched(patch, metadata.next_ms(0)));
        }
        metadata.forget_old_removals();
        let names: Vec<&str> = metadata.keys.keys().map(|key| &key[..1]).collect();
        assert_eq!(names, ["6", "7", "8", "9", "s"], "4 KiB of names of removed keys, and the key that is set");
    }

    #[test]
    fn the_format_is_read_and_written() {
        let text = r#"{"replacedMs":17,"keys":{"gone":{"atMs":18},"name":{"atMs":17,"value":"Press 3"}}}"#;
        let metadata: OperatorMetadata = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&metadata).unwrap(), text);
        assert_eq!((metadata.newest_ms(), metadata.next_ms(3), metadata.next_ms(30)), (Some(18), 19, 30));
        assert_eq!(serde_json::to_string(&OperatorMetadata::default()).unwrap(), "{}");
        serde_json::from_str::<OperatorMetadata>(r#"{"keys":{"a":{"value":1}}}"#).unwrap_err();
        serde_json::from_str::<OperatorMetadata>(r#"{"other":1}"#).unwrap_err();
    }

    fn change() -> impl Strategy<Value = OperatorMetadata> {
        let keys = proptest::collection::btree_map("[abc]", (0..6_i64, proptest::option::of(0..3)), 0..4);
        let key = |(key, (at_ms, value)): (String, (i64, Option<i32>))| {
            (key, OperatorKey { at_ms, value: value.map(Value::from) })
        };
        (proptest::option::of(0..6_i64), keys).prop_map(move |(replaced_ms, keys)| OperatorMetadata {
            replaced_ms,
            keys: keys.into_iter().map(key).collect(),
        })
    }

    proptest! {
        #[test]
        fn the_order_and_repetition_of_changes_do_not_matter(
            (changes, shuffled) in proptest::collection::vec(change(), 0..6).prop_flat_map(|changes| {
                let repeated: Vec<_> = changes.iter().chain(&changes).cloned().collect();
                (Just(changes), Just(repeated).prop_shuffle())
            })
        ) {
            let merged = |changes: Vec<OperatorMetadata>| {
                let mut merged = OperatorMetadata::default();
                for change in changes {
                    merged.merge(change);
                }
                merged
            };
            prop_assert_eq!(merged(changes), merged(shuffled));
        }
    }
}
