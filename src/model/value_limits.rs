//! The limits of values: a convention of metadata.
//!
//! The member `limits` of a device's metadata has the bounds of metrics, by name: `{"limits": {"level":
//! {"min": 20}, "temp": {"min": -5, "max": 80}}}`. Metadata is not checked when it is written, so that no
//! reading is lost. Limits of another form are ignored, and counted.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::Metric;
use super::series::metric_of;

/// The limits of the values of a device.
#[derive(Debug, Default, PartialEq)]
pub struct ValueLimits {
    bounds: BTreeMap<String, Bounds>,
    /// The number of limits that are ignored, because their form is wrong.
    pub invalid: usize,
}

/// The smallest and the largest usual value of a metric. At least one of them is set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Values below this are beyond the limit.
    pub min: Option<f64>,
    /// Values above this are beyond the limit.
    pub max: Option<f64>,
}

/// The bound that a value is beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The lower bound.
    Min,
    /// The upper bound.
    Max,
}

impl ValueLimits {
    /// Reads the limits in the text of metadata, which is a JSON object.
    #[must_use]
    pub fn of_metadata(text: &str) -> Self {
        #[derive(Deserialize)]
        struct Metadata {
            limits: Option<Value>,
        }
        match serde_json::from_str::<Metadata>(text).ok().and_then(|metadata| metadata.limits) {
            None => Self::default(),
            Some(Value::Object(limits)) => {
                let mut found = Self::default();
                for (metric, limit) in limits {
                    // Alerts know limits by metric. So a name with labels, which is a single series, is
                    // invalid here.
                    match Bounds::of(&limit).filter(|_| !metric.contains('{')) {
                        Some(bounds) => _ = found.bounds.insert(metric, bounds),
                        None => found.invalid += 1,
                    }
                }
                found
            }
            Some(_) => Self { invalid: 1, ..Self::default() },
        }
    }

    /// Whether no metric has bounds.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bounds.is_empty()
    }

    /// The bounds of a metric by its name.
    #[must_use]
    pub fn bounds_of(&self, metric: &str) -> Option<Bounds> {
        self.bounds.get(metric).copied()
    }

    /// Returns the bound that a value of a series is beyond; `None` if the value is within the limits.
    #[must_use]
    pub fn beyond(&self, series: &Metric, value: f64) -> Option<Bound> {
        let Bounds { min, max } = self.bounds_of(metric_of(series))?;
        if max.is_some_and(|max| value > max) {
            return Some(Bound::Max);
        }
        min.is_some_and(|min| value < min).then_some(Bound::Min)
    }
}

impl Bounds {
    fn of(limit: &Value) -> Option<Self> {
        let members: &Map<String, Value> = limit.as_object()?;
        let number = |key: &str| members.get(key).map_or(Some(None), |value| value.as_f64().map(Some));
        let (min, max) = (number("min")?, number("max")?);
        let is_known = members.keys().all(|key| key == "min" || key == "max") && !members.is_empty();
        let is_range = min.zip(max).is_none_or(|(min, max)| min <= max);
        (is_known && is_range).then_some(Self { min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_with_the_limits_of_their_metric() {
        let text = r#"{"floor":1,"limits":{"level":{"min":20},"temp":{"min":-5,"max":80.5}}}"#;
        let limits = ValueLimits::of_metadata(text);
        let beyond = |series: &str, value| limits.beyond(&series.into(), value);
        assert_eq!(limits.invalid, 0);
        assert_eq!(
            [beyond("level", 19.9), beyond("level", 20.0), beyond("level", 1e9)],
            [Some(Bound::Min), None, None]
        );
        assert_eq!([beyond("temp", 80.5), beyond("temp", 80.6)], [None, Some(Bound::Max)]);
        assert_eq!(beyond("temp{side=left}", -6.0), Some(Bound::Min), "each series of the metric");
        assert_eq!(beyond("other", -6.0), None);
    }

    #[test]
    fn other_forms_are_no_limits_and_are_counted() {
        for (limits, invalid) in [
            ("[1]", 1),
            ("null", 0),
            ("{}", 0),
            (r#"{"a":{"min":"5"},"b":{"max":null},"c":80,"d":{},"e":{"min":2,"max":1},"f":{"max":1,"high":2}}"#, 6),
            (r#"{"a":[1,2],"b":{"max":80}}"#, 1),
        ] {
            let found = ValueLimits::of_metadata(&format!(r#"{{"limits":{limits},"x":[{{"y":1}}]}}"#));
            assert_eq!(found.invalid, invalid, "{limits}");
            assert_eq!(found.bounds_of("b").is_some(), limits.contains("80}"), "{limits}");
            assert_eq!(found.bounds_of("a"), None);
        }
        assert_eq!(ValueLimits::of_metadata(r#"{"floor":1}"#), ValueLimits::default());
    }
}
