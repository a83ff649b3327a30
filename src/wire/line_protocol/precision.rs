//! The units of times: the parameter `precision`, and how a time becomes milliseconds.

/// The unit of the times of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it, and `Auto` has a comment")]
pub enum Precision {
    Nanoseconds,
    Microseconds,
    Milliseconds,
    Seconds,
    Minutes,
    Hours,
    /// The unit follows from the size of each number, as in InfluxDB 3.
    ///
    /// Seconds are below 5e9, milliseconds below 5e12, microseconds below 5e15, and nanoseconds above.
    Auto,
}

impl Precision {
    /// Parses the `precision` of `/write`.
    ///
    /// It is `n`, `ns`, `u`, `us`, `µ`, `ms`, `s`, `m` or `h`.
    #[must_use]
    pub fn from_v1(name: &str) -> Option<Self> {
        match name {
            "n" | "ns" => Some(Self::Nanoseconds),
            "u" | "us" | "µ" => Some(Self::Microseconds),
            "ms" => Some(Self::Milliseconds),
            "s" => Some(Self::Seconds),
            "m" => Some(Self::Minutes),
            "h" => Some(Self::Hours),
            _ => None,
        }
    }

    /// Parses the `precision` of `/api/v2/write`: `ns`, `us`, `ms` or `s`.
    #[must_use]
    pub fn from_v2(name: &str) -> Option<Self> {
        match name {
            "ns" | "us" | "ms" | "s" => Self::from_v1(name),
            _ => None,
        }
    }

    /// Parses the `precision` of `/api/v3/write_lp`.
    ///
    /// It is `auto`, `second`, `millisecond`, `microsecond` or `nanosecond`, or the short `s`, `ms`, `us`,
    /// `u`, `ns`, `n`.
    #[must_use]
    pub fn from_v3(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "second" => Some(Self::Seconds),
            "millisecond" => Some(Self::Milliseconds),
            "microsecond" => Some(Self::Microseconds),
            "nanosecond" => Some(Self::Nanoseconds),
            "s" | "ms" | "us" | "u" | "ns" | "n" => Self::from_v1(name),
            _ => None,
        }
    }

    /// Converts a time in this unit to Unix milliseconds; `None` if it does not fit.
    ///
    /// It rounds toward the past, so that -1 ns is in millisecond -1.
    pub(super) fn to_ms(self, time: i64) -> Option<i64> {
        match self {
            Self::Nanoseconds => Some(time.div_euclid(1_000_000)),
            Self::Microseconds => Some(time.div_euclid(1_000)),
            Self::Milliseconds => Some(time),
            Self::Seconds => time.checked_mul(1_000),
            Self::Minutes => time.checked_mul(60_000),
            Self::Hours => time.checked_mul(3_600_000),
            Self::Auto => Self::guess(time).to_ms(time),
        }
    }

    const fn guess(time: i64) -> Self {
        match time.unsigned_abs() {
            0..5_000_000_000 => Self::Seconds,
            5_000_000_000..5_000_000_000_000 => Self::Milliseconds,
            5_000_000_000_000..5_000_000_000_000_000 => Self::Microseconds,
            _ => Self::Nanoseconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_has_its_own_names() {
        let names = "n ns nanosecond u us µ microsecond ms millisecond s second m h auto";
        let read = |from: fn(&str) -> Option<Precision>| -> Vec<_> {
            names.split(' ').filter_map(|name| Some(format!("{name}={:?}", from(name)?))).collect()
        };
        assert_eq!(
            read(Precision::from_v1).join(" "),
            "n=Nanoseconds ns=Nanoseconds u=Microseconds us=Microseconds µ=Microseconds ms=Milliseconds s=Seconds \
             m=Minutes h=Hours"
        );
        assert_eq!(read(Precision::from_v2).join(" "), "ns=Nanoseconds us=Microseconds ms=Milliseconds s=Seconds");
        assert_eq!(
            read(Precision::from_v3).join(" "),
            "n=Nanoseconds ns=Nanoseconds nanosecond=Nanoseconds u=Microseconds us=Microseconds \
             microsecond=Microseconds ms=Milliseconds millisecond=Milliseconds s=Seconds second=Seconds auto=Auto"
        );
        for from in [Precision::from_v1, Precision::from_v2, Precision::from_v3] {
            assert_eq!((from(""), from("NS"), from("min")), (None, None, None));
        }
    }

    #[test]
    fn fractions_of_a_millisecond_round_toward_the_past() {
        for (ns, ms) in [(0, 0), (999_999, 0), (1_000_000, 1), (-1, -1), (-1_000_000, -1), (-1_000_001, -2)] {
            assert_eq!(Precision::Nanoseconds.to_ms(ns), Some(ms));
        }
        assert_eq!(Precision::Microseconds.to_ms(1_999), Some(1));
        assert_eq!(Precision::Microseconds.to_ms(-1), Some(-1));
        assert_eq!(Precision::Nanoseconds.to_ms(i64::MIN), Some(-9_223_372_036_855));
    }

    #[test]
    fn units_coarser_than_a_millisecond_may_overflow() {
        for (precision, factor) in
            [(Precision::Seconds, 1_000), (Precision::Minutes, 60_000), (Precision::Hours, 3_600_000)]
        {
            assert_eq!(precision.to_ms(-2), Some(-2 * factor));
            assert_eq!(precision.to_ms(i64::MAX / factor), Some(i64::MAX / factor * factor));
            assert_eq!(precision.to_ms(i64::MAX / factor + 1), None);
            assert_eq!(precision.to_ms(i64::MIN), None);
        }
        assert_eq!(Precision::Milliseconds.to_ms(i64::MAX), Some(i64::MAX));
    }

    #[test]
    fn auto_depends_on_the_size() {
        for sign in [1, -1] {
            let to_ms = |time: i64| Precision::Auto.to_ms(sign * time).unwrap();
            assert_eq!(to_ms(0), 0);
            assert_eq!(to_ms(4_999_999_999), sign * 4_999_999_999_000);
            assert_eq!(to_ms(5_000_000_000), sign * 5_000_000_000);
            assert_eq!(to_ms(4_999_999_999_999), sign * 4_999_999_999_999);
            assert_eq!(to_ms(5_000_000_000_000), sign * 5_000_000_000);
            assert_eq!(to_ms(4_999_999_999_999_000), sign * 4_999_999_999_999);
            assert_eq!(to_ms(5_000_000_000_000_000), sign * 5_000_000_000);
            assert_eq!(to_ms(1_776_693_610_000_000_000), sign * 1_776_693_610_000);
        }
        assert_eq!(Precision::Auto.to_ms(i64::MIN), Some(-9_223_372_036_855));
    }
}
