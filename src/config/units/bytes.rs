//! Sizes in bytes, such as `"64MiB"`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

use super::{UnitError, number_and_unit};

/// A number of bytes, at most [`i64::MAX`].
///
/// The configuration writes a number with a unit: `"64MiB"`. The units are B, KiB, MiB, GiB and TiB (powers
/// of 1024), and kB, MB, GB and TB (powers of 1000). A plain integer is a number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const BYTES_EXPECTED: UnitError = UnitError(
    "a size such as \"64MiB\": a whole number and B, KiB, MiB, GiB, TiB, kB, MB, GB or TB, or a number of bytes",
);

impl Bytes {
    /// A size in KiB (1024 bytes).
    #[must_use]
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// A size in MiB (1024 KiB).
    #[must_use]
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// A size in GiB (1024 MiB).
    #[must_use]
    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    /// The number of bytes as `usize`, for buffers in memory.
    #[must_use]
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (count, unit, rest) = number_and_unit(text).ok_or(BYTES_EXPECTED)?;
        let bytes_per_unit: u64 = match unit {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "kB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TiB" => 1 << 40,
            "TB" => 1_000_000_000_000,
            _ => return Err(BYTES_EXPECTED),
        };
        let bytes = count.checked_mul(bytes_per_unit).filter(|&bytes| i64::try_from(bytes).is_ok());
        match bytes {
            Some(bytes) if rest.is_empty() => Ok(Self(bytes)),
            _ => Err(BYTES_EXPECTED),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let fits = |&(bytes, _): &(u64, &str)| self.0 != 0 && self.0.is_multiple_of(bytes);
        let (bytes_per_unit, unit) = units.into_iter().find(fits).unwrap_or((1, "B"));
        write!(f, "{}{unit}", self.0 / bytes_per_unit)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(BYTES_EXPECTED.0)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Bytes, E> {
                let unsigned = u64::try_from(bytes);
                unsigned.map(Bytes).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_size_takes_binary_units_decimal_units_and_plain_bytes() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            ("4KiB", 4096),
            ("8GiB", 8 << 30),
            ("64MB", 64_000_000),
            ("5kB", 5000),
            ("1GB", 1_000_000_000),
            ("2TiB", 2 << 40),
            ("20TB", 20_000_000_000_000),
            ("17B", 17),
            ("17", 17),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn a_size_that_is_unclear_or_too_large_is_refused() {
        for text in
            ["", "MiB", "64mib", "64M", "1.5GiB", "-1", "1KiB1", "64 MiB", "8589934592GiB", "9223372036854775808"]
        {
            assert_eq!(text.parse::<Bytes>(), Err(BYTES_EXPECTED), "{text}");
        }
    }

    proptest! {
        #[test]
        fn sizes_survive_a_round_trip(
            bytes in prop_oneof![0..=i64::MAX as u64, 0..5_000_u64, (0..5_000_u64).prop_map(|n| n << 20)],
        ) {
            prop_assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }
    }
}
