//! Names of metrics and labels as Prometheus allows them.

use std::borrow::Cow;

/// Returns the name of a label for a key: `at_city` for `at.city`.
///
/// Each character that Prometheus does not allow becomes `_`.
#[must_use]
pub fn label_name(key: &str) -> String {
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let name: String = key.chars().map(|character| if is_allowed(character) { character } else { '_' }).collect();
    if name.starts_with(|first: char| first.is_ascii_digit()) { format!("_{name}") } else { name }
}

/// Returns the name of a metric as Prometheus allows it.
///
/// It may have colons, which names of labels may not.
#[must_use]
pub fn metric_name(metric: &str) -> Cow<'_, str> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    if metric.bytes().all(is_allowed) && !metric.starts_with(|first: char| first.is_ascii_digit()) {
        return metric.into();
    }
    let parts: Vec<String> = metric.split(':').map(label_name).collect();
    parts.join(":").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_prometheus_refuses_are_replaced() {
        assert_eq!([label_name("1st"), label_name("größe"), label_name("a-b")], ["_1st", "gr__e", "a_b"]);
        assert_eq!([metric_name("a:b_c"), metric_name("a:1.b"), metric_name("1")], ["a:b_c", "a:_1_b", "_1"]);
    }
}
