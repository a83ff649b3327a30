//! Measurements, fields and tags, and what they are in tidegauge.
//!
//! | InfluxDB | here |
//! |---|---|
//! | field `f` of measurement `m` | metric `m_f` that was written as measurement `m` and field `f` |
//! | field `value` of measurement `m` | any other metric `m` |
//! | the device tag | the device |
//! | other tags | labels of the series; metadata of the device that is a text, a number or a boolean |
//!
//! Line protocol joins measurement and field by `_`. The device index knows where the measurement ends, so
//! the way back is exact. If several tags have one name, the device tag wins over labels, and a label over
//! metadata. Metadata that has the name of an alias of the device tag is no tag.

/// The field of a metric that has the same name as its measurement.
pub const VALUE: &str = "value";

/// The name of the device tag, if it is among the tags that may name a device.
const USUAL_DEVICE_TAG: &str = "device_id";

/// Returns the measurement and the field of a metric without labels.
///
/// `measurement` is the measurement of a metric such as `cpu_load`, which was written as measurement and
/// field. For any other metric, the field is `value`.
#[must_use]
pub fn split<'m>(metric: &'m str, measurement: Option<&str>) -> (&'m str, &'m str) {
    let field = measurement.and_then(|measurement| metric.strip_prefix(measurement)?.strip_prefix('_'));
    match field {
        Some(field) => (&metric[..metric.len() - field.len() - 1], field),
        None => (metric, VALUE),
    }
}

/// Returns the device tag: the tag that shows the device in answers.
///
/// It is one of the tags that may name the device in line protocol. The others are its aliases.
#[must_use]
pub fn device_tag(names: &[String]) -> &str {
    let usual = names.iter().find(|name| *name == USUAL_DEVICE_TAG);
    usual.or(names.first()).map_or(USUAL_DEVICE_TAG, |name| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_split_where_its_measurement_ends() {
        for (metric, measurement, expected) in [
            ("climate_temp", Some("climate"), ("climate", "temp")),
            ("climate_temp", None, ("climate_temp", VALUE)),
            ("a_b_c", Some("a_b"), ("a_b", "c")),
            ("a_b_c", Some("a"), ("a", "b_c")),
            ("a_", Some("a"), ("a", "")),
            ("ab", Some("a"), ("ab", VALUE)),
            ("ä_é", Some("ä"), ("ä", "é")),
        ] {
            assert_eq!(split(metric, measurement), expected);
        }
    }

    #[test]
    fn the_device_tag_is_device_id_or_the_first_one() {
        let tag = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            device_tag(&names).to_owned()
        };
        assert_eq!(tag(&["deviceId", "device_id", "host"]), "device_id");
        assert_eq!(tag(&["mac", "host"]), "mac");
    }
}
