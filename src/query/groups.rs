//! Groups of devices by their metadata.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::devices::{Keeping, wanted_series};
use super::{Answer, DevicesRequest, Listed, Queries, QueryError, RollupsRequest};
use crate::access::DeviceScope;
use crate::model::find_member;
use crate::store::DeviceSummary;

/// The value of each key in the metadata of a device, in the order of the keys; null for an absent key.
pub type MetadataValues = Vec<Value>;

/// Devices with the same values of some keys of their metadata.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceGroup {
    /// The values of the keys, as the first device has them.
    pub values: MetadataValues,
    /// The number of devices.
    pub devices: usize,
}

/// Groups, in the order of their first devices.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceGroups {
    /// The groups.
    pub groups: Vec<DeviceGroup>,
    /// The index of the group of each device.
    pub group_of: Vec<usize>,
}

impl Queries {
    /// Returns the client IDs of devices in order. Beside each is the number of its series that `rollups`
    /// reads, and the values of `keys`.
    ///
    /// The keys are those of the metadata. A key with dots, such as `site.name`, also names a member of an
    /// object in the metadata.
    ///
    /// # Errors
    /// Those of [`Self::device_ids_with_series`].
    pub async fn device_values(
        &self,
        scope: &DeviceScope,
        request: &DevicesRequest,
        rollups: &RollupsRequest,
        keys: &[String],
    ) -> Result<Answer<Listed<(Arc<str>, (usize, MetadataValues))>>, QueryError> {
        let first = self.first_day(rollups)?;
        let keep = |id, summary: DeviceSummary| {
            let known_series = wanted_series(&summary, &rollups.series, first);
            let metadata = summary.metadata.and_then(|metadata| serde_json::from_str(&metadata.text).ok());
            let metadata: Map<String, Value> = metadata.unwrap_or_default();
            let value = |key: &String| find_member(&metadata, key, &|value| Some(value.clone())).unwrap_or_default();
            (id, (known_series, keys.iter().map(value).collect()))
        };
        self.list(self.deadline(), scope, request, Keeping::Ids, keep).await
    }
}

impl DeviceGroups {
    /// Groups devices by their values.
    ///
    /// A text is the same value as a number or a boolean that is written alike, because tables and filters by
    /// metadata cannot tell them apart.
    #[must_use]
    pub fn of(devices: impl IntoIterator<Item = MetadataValues>) -> Self {
        let Self { mut groups, mut group_of } = Self::default();
        // The index of each group by its values.
        let mut places: HashMap<MetadataValues, usize> = HashMap::new();
        for values in devices {
            let place = *places.entry(values.iter().map(comparable).collect()).or_insert(groups.len());
            if place == groups.len() {
                groups.push(DeviceGroup { values, devices: 0 });
            }
            groups[place].devices += 1;
            group_of.push(place);
        }
        Self { groups, group_of }
    }
}

/// Returns a value that is equal for the values of one group.
///
/// Numbers and booleans become their texts: `2`, `2.0` and the text `2` are one group. Inside of arrays and
/// objects, only `2.0` becomes `2`.
fn comparable(value: &Value) -> Value {
    match with_whole_numbers(value) {
        scalar @ (Value::Number(_) | Value::Bool(_)) => scalar.to_string().into(),
        other => other,
    }
}

/// Returns a value with whole numbers where that is exact: `2` for `2.0`, `0` for `-0.0`.
fn with_whole_numbers(value: &Value) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53: up to here a float has one spelling as a whole number
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if !number.is_i64() && float.fract() == 0.0 && float.abs() <= EXACT => (float as i64).into(),
            _ => value.clone(),
        },
        Value::Array(elements) => elements.iter().map(with_whole_numbers).collect(),
        Value::Object(members) => members.iter().map(|(key, value)| (key.clone(), with_whole_numbers(value))).collect(),
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn devices_with_equal_values_are_one_group() {
        let devices = [json!([2, "a"]), json!(["2", "a"]), json!([2.0, "a"]), json!([null, "a"]), json!([2.5, "a"])];
        let found = DeviceGroups::of(devices.map(|values| values.as_array().unwrap().clone()));
        assert_eq!(found.group_of, [0, 0, 0, 1, 2]);
        assert_eq!(found.groups.iter().map(|group| group.devices).collect::<Vec<_>>(), [3, 1, 1]);
        for (one, other, are_equal) in [
            (json!(true), json!("true"), true),
            (json!("2.0"), json!(2), false),
            (json!(null), json!("null"), false),
            (json!([1]), json!("[1]"), false),
            (json!([1]), json!(["1"]), false),
        ] {
            let found = DeviceGroups::of([vec![one.clone()], vec![other.clone()]]);
            assert_eq!(found.groups.len() == 1, are_equal, "{one} and {other}");
        }
        for (a, b, are_equal) in [
            (json!(0), json!(-0.0), true),
            (json!([1.0, { "x": 2 }]), json!([1, { "x": 2.0 }]), true),
            (json!(9_007_199_254_740_992_i64), json!(9_007_199_254_740_993_i64), false),
            (json!(1e300), json!(1e301), false),
        ] {
            assert_eq!(with_whole_numbers(&a) == with_whole_numbers(&b), are_equal, "{a} and {b}");
        }
    }

    #[test]
    fn a_key_with_dots_names_a_member_of_an_object() {
        let metadata = json!({ "floor": 2, "room": { "name": "x", "a.b": { "c": 7 } }, "site.name": "hall" });
        let metadata = metadata.as_object().unwrap();
        for (key, value) in
            [("floor", json!(2)), ("room.name", json!("x")), ("room.a.b.c", json!(7)), ("site.name", json!("hall"))]
        {
            assert_eq!(find_member(metadata, key, &Some), Some(&value), "{key}");
        }
        for key in ["", ".", "floor.x", "room.", "site", "room.a"] {
            assert_eq!(find_member(metadata, key, &Some), None, "{key}");
        }
    }
}
