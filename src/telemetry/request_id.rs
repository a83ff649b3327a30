//! The ID of an HTTP request, which the answer and the log lines contain.

use std::fmt;

const DIGITS: usize = 32;

/// The length of a `traceparent` of version 00.
const TRACEPARENT_BYTES: usize = 55;

/// The ID of an HTTP request: 32 lower-case hexadecimal digits, not all zero.
///
/// It is the trace ID in the request's header `traceparent` (W3C Trace Context), or a random number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RequestId([u8; DIGITS]);

impl RequestId {
    /// A new random ID.
    #[must_use]
    pub fn random() -> Self {
        let number = rand::random_range(1..=u128::MAX);
        let digit = |at: usize| b"0123456789abcdef"[(number >> (4 * (DIGITS - 1 - at)) & 0xf) as usize];
        Self(std::array::from_fn(digit))
    }

    /// The trace ID in a header `traceparent`; `None` if the header is malformed.
    ///
    /// ```text
    /// traceparent = version "-" trace-id "-" parent-id "-" flags    2, 32, 16 and 2 of 0-9 a-f
    /// ```
    /// Neither ID may be all zero, and the version may not be `ff`. A version other than `00` may be followed
    /// by `-` and more fields, which are ignored.
    #[must_use]
    pub fn of_traceparent(header: &[u8]) -> Option<Self> {
        let (known, more) = header.split_at_checked(TRACEPARENT_BYTES)?;
        let mut parts = known.split(|byte| *byte == b'-');
        let [version, id, parent, flags] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
        let is_hex = |digits: &[u8]| digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        let is_zero = |digits: &[u8]| digits.iter().all(|digit| *digit == b'0');
        let lengths = [version, id, parent, flags].map(<[u8]>::len);
        let is_known = lengths == [2, DIGITS, 16, 2] && [version, id, parent, flags].into_iter().all(is_hex);
        let is_right = is_known && version != b"ff" && !is_zero(id) && !is_zero(parent);
        let ends_well = more.is_empty() || (version != b"00" && more[0] == b'-');
        if is_right && ends_well { id.try_into().ok().map(Self) } else { None }
    }

    /// The 32 hexadecimal digits of the ID.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn the_trace_id_of_a_traceparent_is_the_id_and_no_other_text_is_one() {
        let id = |header: &str| RequestId::of_traceparent(header.as_bytes()).map(|id| id.to_string());
        for good in [
            "00-ID-00f067aa0ba902b7-01",
            "00-ID-00f067aa0ba902b7-00",
            "cc-ID-00f067aa0ba902b7-01",
            "01-ID-00f067aa0ba902b7-01-more",
        ] {
            assert_eq!(id(&good.replace("ID", ID)).as_deref(), Some(ID), "{good}");
        }
        for bad in [
            "",
            ID,
            "00-ID-00f067aa0ba902b7",
            "00-ID-00f067aa0ba902b7-01-more",
            "00-ID-00f067aa0ba902b7-01 ",
            "01-ID-00f067aa0ba902b7-01more",
            "ff-ID-00f067aa0ba902b7-01",
            "0G-ID-00f067aa0ba902b7-01",
            "00-ID-00F067AA0BA902B7-01",
            "00-ID-0000000000000000-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "00_ID_00f067aa0ba902b7_01",
            "00-ID-00f067aa0ba902b7-0é",
        ] {
            assert_eq!(id(&bad.replace("ID", ID)), None, "{bad}");
        }
    }

    #[test]
    fn a_random_id_is_one_that_a_traceparent_may_have() {
        let [one, other] = [RequestId::random(), RequestId::random()];
        assert_ne!(one, other);
        assert_eq!(RequestId::of_traceparent(format!("00-{one}-00f067aa0ba902b7-01").as_bytes()), Some(one));
    }
}
