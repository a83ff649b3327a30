//! Durations such as `1h30m`, in nanoseconds.

/// The units, the longest first, each with its nanoseconds.
const UNITS: &[(&str, i64)] = &[
    ("w", 604_800_000_000_000),
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("u", 1_000),
    ("µ", 1_000),
    ("ns", 1),
];

/// Parses a duration; `None`: the text is not a duration.
///
/// A duration that is too long for an `i64` of nanoseconds becomes `i64::MAX`.
pub(super) fn parse(text: &str) -> Option<i64> {
    let mut rest = text;
    let mut total = 0_i64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        if number.is_empty() {
            return None;
        }
        let end = after.find(|char: char| char.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let (_, ns) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let number = number.parse::<i64>().unwrap_or(i64::MAX);
        total = total.saturating_add(number.saturating_mul(*ns));
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

/// Writes a duration in its longest unit without a remainder: `90m`, not `1h30m`.
pub(super) fn format(ns: i64) -> String {
    if ns == 0 {
        return "0s".to_owned();
    }
    UNITS
        .iter()
        .find(|(_, unit)| ns % unit == 0)
        .map_or_else(String::new, |(name, unit)| format!("{}{name}", ns / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_may_have_several() {
        for (text, ns) in [
            ("1h30m", 5_400_000_000_000),
            ("10ns", 10),
            ("3u", 3_000),
            ("3µ", 3_000),
            ("2ms", 2_000_000),
            ("1w", 604_800_000_000_000),
            ("99999999999999h", i64::MAX),
        ] {
            assert_eq!(parse(text), Some(ns), "{text}");
        }
        for bad in ["", "5", "h", "1y", "1h5", "1e3"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        for ns in [0, 1, 90_000_000_000, 3_600_000_000_000] {
            assert_eq!(parse(&format(ns)), Some(ns));
        }
    }
}
