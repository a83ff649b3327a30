//! Series: metric names with labels, and their canonical text.
//!
//! A series of a device is a metric with labels: `cpu_usage_idle` of `cpu=cpu0`. Its canonical text is the
//! metric name alone, or the name and its labels:
//! ```text
//! series = name | name "{" label ("," label)* "}"   labels ascend by the bytes of their keys, each key once
//! label  = text "=" text
//! text   = one or more characters; a backslash precedes each of \ { } , =
//! ```
//! The text is the key of the series in the log, in documents, rows and answers. A metric name has no `{` and
//! no `}`, so that the name ends where the labels begin.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::metric::{MetricNameError, check_metric_name, is_stored_escape, is_usual_metric_name};

/// The most labels of a series.
pub const SERIES_MAX_LABELS: usize = 32;

/// The longest text of a series, in bytes.
pub const SERIES_MAX_BYTES: usize = 512;

/// Up to this many labels need no allocation.
const USUAL_LABELS: usize = 4;

/// A metric name with its labels, parsed from a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series<'t> {
    /// The name of the metric.
    pub metric: &'t str,
    /// The labels, ascending by key.
    pub labels: Labels<'t>,
}

/// The keys and values of labels.
///
/// A key or value without escapes is borrowed from the text.
pub type Labels<'t> = SmallVec<[(Cow<'t, str>, Cow<'t, str>); USUAL_LABELS]>;

/// Why a text is not a series, or labels cannot belong to a series.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeriesError {
    /// The metric name is not valid.
    #[error(transparent)]
    Name(#[from] MetricNameError),
    /// The series has more than [`SERIES_MAX_LABELS`] labels.
    #[error("a series has at most {SERIES_MAX_LABELS} labels, this has {0}")]
    TooManyLabels(usize),
    /// The text is longer than [`SERIES_MAX_BYTES`].
    #[error("a metric with its labels has at most {SERIES_MAX_BYTES} bytes, this has {0}")]
    TooLong(usize),
    /// A label has an empty key or an empty value, or holds a character that labels do not have.
    #[error("a label has a key and a value without control characters, U+FF0E and U+FF04, unlike {0:?}")]
    Label(String),
    /// Two labels have the same key.
    #[error("the label {0:?} is duplicated")]
    DuplicateLabel(String),
    /// The text after the name does not have the form of labels. The number is a byte offset.
    #[error("labels look like {{key=value,key=value}}; a backslash precedes each of \\ {{ }} , =: byte {}", .0 + 1)]
    Form(usize),
}

impl<'t> Series<'t> {
    /// Parses the text of a series. Labels may be in any order.
    ///
    /// # Errors
    /// When `text` is not a series.
    pub fn parse(text: &'t str) -> Result<Self, SeriesError> {
        let Some(open) = text.find('{') else {
            check_metric_name(text)?;
            return Ok(Self { metric: text, labels: Labels::new() });
        };
        check_length(text.len())?;
        let metric = &text[..open];
        check_metric_name(metric)?;
        let mut labels = Labels::new();
        let mut at = open + 1;
        loop {
            let key = read_text(text, &mut at, b'=')?;
            at += 1;
            let value = read_text(text, &mut at, b',')?;
            check_label(&key, &value)?;
            labels.push((key, value));
            at += 1;
            if text.as_bytes()[at - 1] == b'}' {
                break;
            }
        }
        if at < text.len() {
            return Err(SeriesError::Form(at));
        }
        check_count(labels.len())?;
        labels.sort_by(|(a, _), (b, _)| a.cmp(b));
        check_keys(labels.iter().map(|(key, _)| &**key))?;
        Ok(Self { metric, labels })
    }
}

/// The name of the metric in the canonical text of a series.
#[must_use]
pub fn metric_of(series: &str) -> &str {
    &series[..series.find('{').unwrap_or(series.len())]
}

/// Whether `text` is certainly a canonical text: a usual name, with usual labels or none.
///
/// The check reads the text once and allocates nothing. It does not recognize texts with escapes or with
/// characters beyond ASCII; [`canonical`] checks those.
#[inline]
#[must_use]
pub fn is_usual(text: &str) -> bool {
    is_usual_metric_name(text) || is_usual_labelled(text)
}

#[inline(never)]
fn is_usual_labelled(text: &str) -> bool {
    let Some((metric, labels)) = text.split_once('{') else { return false };
    let Some(labels) = labels.strip_suffix('}') else { return false };
    let is_text =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !is_escaped(byte));
    let (mut last, mut count) = ("", 0);
    text.len() <= SERIES_MAX_BYTES
        && is_usual_metric_name(metric)
        && labels.split(',').all(|label| {
            count += 1;
            let Some((key, value)) = label.split_once('=') else { return false };
            let is_after = std::mem::replace(&mut last, key) < key;
            is_after && is_text(key) && is_text(value)
        })
        && count <= SERIES_MAX_LABELS
}

/// The canonical form of the text of a series: nearly always `text` itself.
///
/// # Errors
/// When `text` is not a series.
pub fn canonical(text: &str) -> Result<Cow<'_, str>, SeriesError> {
    let Series { metric, labels } = Series::parse(text)?;
    if labels.is_empty() {
        return Ok(Cow::Borrowed(text));
    }
    let mut labels: SmallVec<[_; USUAL_LABELS]> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
    let mut canonical = String::with_capacity(text.len());
    canonical.push_str(metric);
    append_labels(&mut canonical, &mut labels)?;
    Ok(if canonical == text { Cow::Borrowed(text) } else { Cow::Owned(canonical) })
}

/// Appends `{key=value,...}` in canonical form to `text`, or nothing if there are no labels. Sorts `labels`.
///
/// The labels, their number and their length are checked before anything is appended.
///
/// # Errors
/// When the labels cannot belong to a series.
pub fn append_labels(text: &mut String, labels: &mut [(&str, &str)]) -> Result<(), SeriesError> {
    if labels.is_empty() {
        return Ok(());
    }
    check_count(labels.len())?;
    check_length(labels_bytes(labels.iter().copied()))?;
    labels.iter().try_for_each(|(key, value)| check_label(key, value))?;
    labels.sort_unstable();
    check_keys(labels.iter().map(|&(key, _)| key))?;
    for (at, (key, value)) in labels.iter().enumerate() {
        text.push(if at == 0 { '{' } else { ',' });
        append_escaped(text, key, is_escaped);
        text.push('=');
        append_escaped(text, value, is_escaped);
    }
    text.push('}');
    Ok(())
}

/// Replaces `text` by the canonical text of a series.
///
/// # Errors
/// When the name or the labels are not valid, or the text would be too long. Then `text` is empty.
pub fn write(text: &mut String, metric: &str, labels: &mut [(&str, &str)]) -> Result<(), SeriesError> {
    text.clear();
    check_metric_name(metric)?;
    text.push_str(metric);
    let written = append_labels(text, labels).and_then(|()| check_length(text.len()));
    if written.is_err() {
        text.clear();
    }
    written
}

/// The number of bytes that labels take in the canonical text, braces included.
pub fn labels_bytes<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> usize {
    let bytes: usize = labels.map(|(key, value)| ",=".len() + text_bytes(key) + text_bytes(value)).sum();
    if bytes == 0 { 0 } else { bytes + "{}".len() - ",".len() }
}

/// Checks the length of the text of a series.
///
/// # Errors
/// When `bytes` is more than [`SERIES_MAX_BYTES`].
pub const fn check_length(bytes: usize) -> Result<(), SeriesError> {
    if bytes <= SERIES_MAX_BYTES { Ok(()) } else { Err(SeriesError::TooLong(bytes)) }
}

const fn check_count(labels: usize) -> Result<(), SeriesError> {
    if labels <= SERIES_MAX_LABELS { Ok(()) } else { Err(SeriesError::TooManyLabels(labels)) }
}

fn check_label(key: &str, value: &str) -> Result<(), SeriesError> {
    let is_valid = |text: &str| {
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_plain || !text.is_empty() && !text.chars().any(|char| char.is_control() || is_stored_escape(char))
    };
    if is_valid(key) && is_valid(value) {
        return Ok(());
    }
    let shown: String = format!("{key}={value}").chars().take(64).collect();
    Err(SeriesError::Label(shown))
}

/// Checks that no key occurs twice. The keys are sorted.
fn check_keys<'k>(keys: impl Iterator<Item = &'k str> + Clone) -> Result<(), SeriesError> {
    let repeated = keys.clone().zip(keys.skip(1)).find(|(a, b)| a == b);
    repeated.map_or(Ok(()), |(key, _)| Err(SeriesError::DuplicateLabel(key.to_owned())))
}

/// Reads a key (`end` is `=`) or a value (`end` is `,`), and removes its escapes.
///
/// Moves `at` to the byte that ends it: `end`, or `}` after the last value.
fn read_text<'t>(text: &'t str, at: &mut usize, end: u8) -> Result<Cow<'t, str>, SeriesError> {
    let (start, mut found) = (*at, Cow::Borrowed(""));
    let mut plain = start;
    loop {
        match text.as_bytes().get(*at) {
            Some(b'\\') => {
                let escaped = text.as_bytes().get(*at + 1).filter(|byte| is_escaped(**byte));
                let escaped = *escaped.ok_or(SeriesError::Form(*at))?;
                let owned = found.to_mut();
                owned.push_str(&text[plain..*at]);
                owned.push(char::from(escaped));
                *at += 2;
                plain = *at;
            }
            Some(&byte) if byte == end || byte == b'}' && end == b',' => break,
            Some(&byte) if !is_escaped(byte) => *at += 1,
            _ => return Err(SeriesError::Form(*at)),
        }
    }
    if plain == start {
        return Ok(Cow::Borrowed(&text[start..*at]));
    }
    found.to_mut().push_str(&text[plain..*at]);
    Ok(found)
}

/// Appends `text` to `to`, with a backslash before each special byte.
///
/// `is_special` selects ASCII characters only.
pub(crate) fn append_escaped(to: &mut String, mut text: &str, is_special: impl Fn(u8) -> bool + Copy) {
    while let Some(at) = text.bytes().position(is_special) {
        to.push_str(&text[..at]);
        to.push('\\');
        to.push_str(&text[at..=at]);
        text = &text[at + 1..];
    }
    to.push_str(text);
}

fn text_bytes(text: &str) -> usize {
    text.len() + text.bytes().filter(|&byte| is_escaped(byte)).count()
}

const fn is_escaped(byte: u8) -> bool {
    matches!(byte, b'\\' | b'{' | b'}' | b',' | b'=')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn written(metric: &str, labels: &[(&str, &str)]) -> Result<String, SeriesError> {
        let mut text = String::new();
        write(&mut text, metric, &mut labels.to_vec()).map(|()| text)
    }

    #[test]
    fn the_canonical_text_has_the_labels_in_the_order_of_their_keys() {
        assert_eq!(written("temp", &[]).as_deref(), Ok("temp"));
        assert_eq!(written("cpu_usage_idle", &[("cpu", "cpu0")]).as_deref(), Ok("cpu_usage_idle{cpu=cpu0}"));
        assert_eq!(written("m", &[("b", "2"), ("a", "1"), ("B", "3")]).as_deref(), Ok("m{B=3,a=1,b=2}"));
        assert_eq!(written("m", &[("p", "C:\\"), ("q=", "{,}")]).as_deref(), Ok(r"m{p=C:\\,q\==\{\,\}}"));
    }

    #[test]
    fn a_text_in_any_order_has_one_canonical_form() {
        assert_eq!(canonical("m{b=2,a=1}").as_deref(), Ok("m{a=1,b=2}"));
        assert!(matches!(canonical("m{a=1,b=2}"), Ok(Cow::Borrowed(_))));
        assert!(matches!(canonical("temp"), Ok(Cow::Borrowed("temp"))));
        for (text, usual) in [("temp", true), ("m{a=1,b=x y}", true), ("m{b=1,a=2}", false), ("m{a=1,a=1}", false)] {
            assert_eq!(is_usual(text), usual, "{text}");
        }
        assert_eq!((metric_of("m{a=1}"), metric_of("m")), ("m", "m"));
    }

    #[test]
    fn a_text_that_is_no_series_has_its_reason() {
        for (text, error) in [
            ("", SeriesError::Name(MetricNameError::Empty)),
            ("{a=1}", SeriesError::Name(MetricNameError::Empty)),
            ("m}", SeriesError::Name(MetricNameError::Brace(1))),
            ("m{", SeriesError::Form(2)),
            ("m{}", SeriesError::Form(2)),
            ("m{a}", SeriesError::Form(3)),
            ("m{a=}", SeriesError::Label("a=".to_owned())),
            ("m{=1}", SeriesError::Label("=1".to_owned())),
            ("m{a=1", SeriesError::Form(5)),
            ("m{a=1,}", SeriesError::Form(6)),
            ("m{a=1}x", SeriesError::Form(6)),
            ("m{a=1=2}", SeriesError::Form(5)),
            ("m{a={}", SeriesError::Form(4)),
            ("m{a=\\x}", SeriesError::Form(4)),
            ("m{a=\n}", SeriesError::Label("a=\n".to_owned())),
            ("m{a=1,b=2,a=3}", SeriesError::DuplicateLabel("a".to_owned())),
        ] {
            assert_eq!(Series::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn labels_are_limited_in_number_and_length_before_they_are_written() {
        let keys: Vec<String> = (0..33).map(|key| format!("k{key}")).collect();
        let labels: Vec<_> = keys.iter().map(|key| (&**key, "v")).collect();
        assert!(written("m", &labels[..32]).is_ok());
        assert_eq!(written("m", &labels), Err(SeriesError::TooManyLabels(33)));
        let long = "v".repeat(SERIES_MAX_BYTES - "m{a=}".len());
        assert_eq!(written("m", &[("a", &long)]).map(|text| text.len()), Ok(SERIES_MAX_BYTES));
        assert_eq!(written("mm", &[("a", &long)]), Err(SeriesError::TooLong(SERIES_MAX_BYTES + 1)));
        let text = format!("m{{a={}}}", "v".repeat(10_000));
        assert_eq!(Series::parse(&text), Err(SeriesError::TooLong(text.len())));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            metric in "[a-z_.é$]{1,8}",
            labels in prop::collection::btree_map("[a-c\\\\{},= é]{1,4}", "[a-c\\\\{},= é]{1,4}", 0..5),
        ) {
            let mut pairs: Vec<_> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
            pairs.reverse();
            let text = written(&metric, &pairs).unwrap();
            prop_assert_eq!(text.len(), metric.len() + labels_bytes(pairs.iter().copied()));
            let series = Series::parse(&text).unwrap();
            let read: BTreeMap<String, String> =
                series.labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            prop_assert_eq!((series.metric, read), (&*metric, labels));
            prop_assert_eq!(canonical(&text), Ok(Cow::Borrowed(&*text)));
        }

        #[test]
        fn any_text_is_refused_or_has_a_stable_canonical_form(text in "[ab\\\\{},=]{0,14}") {
            let found = canonical(&text);
            prop_assert!(!is_usual(&text) || found == Ok(Cow::Borrowed(&*text)));
            if let Ok(first) = found {
                prop_assert_eq!(canonical(&first), Ok(Cow::Borrowed(&*first)));
            }
        }
    }
}
