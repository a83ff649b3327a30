//! The answer to a request with readings: which of them the server accepted.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use reqwest::StatusCode;
use serde::{Deserialize, Deserializer};
use strum::IntoEnumIterator;

use super::Trouble;
use super::trouble::short_detail;
use crate::wire::Code;

/// An answer that says of each sent reading whether it is accepted.
#[derive(Debug, Default)]
pub struct Answer {
    /// The numbers of readings by outcome.
    pub counts: Counts,
    /// The rejections of readings and of single values, in the order of the request.
    ///
    /// The server may list only the first of them.
    pub listed: Vec<Listed>,
    /// The wait that the server asks for before rejected readings are sent again.
    pub retry_after: Option<Duration>,
    /// This answer as a [`Trouble`], if a rate limit rejects readings (status 429).
    pub rate_limited: Option<Trouble>,
}

/// The counts in one answer, or the sums of several answers.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// The number of accepted readings.
    pub accepted: u64,
    /// The number of rejected readings.
    #[serde(default)]
    pub rejected: u64,
    /// The number of rejected values in accepted readings.
    #[serde(default)]
    pub rejected_values: u64,
    /// The number of readings that replaced an earlier value in the same request.
    #[serde(default)]
    pub overwritten: u64,
    /// The number of parts that were dropped, such as texts in line protocol.
    #[serde(default)]
    pub ignored: u64,
    /// The number of readings left out as a whole: the server has newer values.
    ///
    /// Only an answer to dead letters that are sent again has this count.
    #[serde(default)]
    pub older: u64,
    /// The number of values left out of accepted readings.
    ///
    /// The server has newer values in their place.
    #[serde(default)]
    pub older_values: u64,
    /// The numbers of listed rejections by code.
    ///
    /// Codes that this version does not know count as [`Self::OTHER`].
    #[serde(skip)]
    pub by_code: BTreeMap<&'static str, u64>,
}

/// A rejection of a reading or of one of its values.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct Listed {
    /// The place of the reading in the request, from 0.
    pub index: usize,
    /// The line in the body, from 1.
    ///
    /// It differs from `index + 1` if a line has several readings.
    pub line: Option<usize>,
    /// The code of the rejection, such as `invalid_value`.
    pub code: String,
    /// The start of the server's description of the rejection.
    #[serde(deserialize_with = "detail")]
    pub detail: String,
}

/// The JSON body of an answer to readings.
#[derive(Deserialize)]
struct Body {
    #[serde(flatten)]
    counts: Counts,
    #[serde(default)]
    errors: Vec<Listed>,
}

fn detail<'de, D: Deserializer<'de>>(text: D) -> Result<String, D::Error> {
    String::deserialize(text).map(|text| short_detail(&text))
}

impl Counts {
    /// The key of codes that this version does not know, in [`Self::by_code`].
    pub const OTHER: &'static str = "other";

    /// Adds the counts of another answer.
    pub fn add(&mut self, other: Self) {
        for (sum, count) in [
            (&mut self.accepted, other.accepted),
            (&mut self.rejected, other.rejected),
            (&mut self.rejected_values, other.rejected_values),
            (&mut self.overwritten, other.overwritten),
            (&mut self.ignored, other.ignored),
            (&mut self.older, other.older),
            (&mut self.older_values, other.older_values),
        ] {
            *sum = sum.saturating_add(count);
        }
        for (code, count) in other.by_code {
            *self.by_code.entry(code).or_default() += count;
        }
    }
}

impl Listed {
    /// The code; `None` if this version does not know it.
    #[must_use]
    pub fn known_code(&self) -> Option<Code> {
        Code::iter().find(|known| known.as_str() == self.code)
    }
}

/// Reads the answer to a request with readings.
///
/// `sent` are the possible numbers of sent readings: 3 to 3, or 0 to 500 if the number is not known. An
/// answer that counts another number of readings is a trouble.
pub(super) fn read(
    url: &str,
    status: StatusCode,
    body: &[u8],
    sent: &RangeInclusive<u64>,
    retry_after: Option<Duration>,
) -> Result<Answer, Trouble> {
    let trouble = || Trouble::of_status(url, status, body, retry_after);
    let Ok(Body { mut counts, errors: listed }) = serde_json::from_slice(body) else { return Err(trouble()) };
    let is_of_readings = match status {
        StatusCode::OK => counts.rejected == 0,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::TOO_MANY_REQUESTS => true,
        _ => false,
    };
    if !is_of_readings {
        return Err(trouble());
    }
    let Counts { accepted, rejected, older, .. } = counts;
    if !sent.contains(&accepted.saturating_add(rejected).saturating_add(older)) {
        let sent =
            if sent.start() == sent.end() { format!("{} readings", sent.end()) } else { "the readings".to_owned() };
        let said = format!(
            "of {sent}, the server has accepted {accepted} and rejected {rejected}: this is not the answer of a \
             tidegauge to them"
        );
        return Err(trouble().saying(said));
    }
    for listed in &listed {
        *counts.by_code.entry(listed.known_code().map_or(Counts::OTHER, Code::as_str)).or_default() += 1;
    }
    let rate_limited = (status == StatusCode::TOO_MANY_REQUESTS).then(trouble);
    Ok(Answer { counts, listed, retry_after, rate_limited })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, body: &str, sent: RangeInclusive<u64>) -> Result<Answer, Trouble> {
        read("http://h", StatusCode::from_u16(status).unwrap(), body.as_bytes(), &sent, None)
    }

    #[test]
    fn only_an_answer_that_counts_each_reading_is_one() {
        let list = r#"[{"index":0,"code":"invalid_value","detail":""},{"index":1,"code":"new","detail":""}]"#;
        let body = format!(r#"{{"accepted":1,"rejected":2,"errors":{list}}}"#);
        for status in [400, 422, 429] {
            let Answer { counts, listed, rate_limited, .. } = answered(status, &body, 3..=3).unwrap();
            assert_eq!((counts.accepted, counts.rejected, listed.len()), (1, 2, 2), "{status}");
            assert_eq!(counts.by_code, BTreeMap::from([("invalid_value", 1), ("other", 1)]));
            assert_eq!(rate_limited.is_some(), status == 429);
        }
        for sent in [3..=3, 1..=300] {
            assert_eq!(answered(200, r#"{"accepted":3}"#, sent).unwrap().counts.accepted, 3);
        }
        for (status, body) in [
            (200, &*body),
            (200, "<html>Welcome</html>"),
            (200, ""),
            (200, r#"{"rejected":3}"#),
            (204, r#"{"accepted":3}"#),
            (302, r#"{"accepted":3}"#),
            (400, r#"{"code":"invalid_json","detail":"x"}"#),
            (401, r#"{"code":"unauthorized","detail":"x"}"#),
            (403, r#"{"accepted":3}"#),
            (404, "not found"),
            (429, r#"{"code":"rate_limited","detail":"x"}"#),
            (503, r#"{"accepted":3}"#),
        ] {
            let trouble = answered(status, body, 3..=3).unwrap_err();
            assert!(trouble.is_answer(), "{status} {body}: {trouble}");
            assert_eq!(trouble.is_for_good, ![429, 503].contains(&status), "{status} {body}: {trouble}");
        }
    }

    #[test]
    fn an_answer_that_counts_other_readings_than_those_that_were_sent_is_none() {
        for (body, sent) in [
            (r#"{"accepted":0}"#, 3..=3),
            (r#"{"accepted":2}"#, 3..=3),
            (r#"{"accepted":1000000}"#, 3..=3),
            (r#"{"accepted":18446744073709551615,"rejected":4}"#, 3..=3),
            (r#"{"accepted":0}"#, 1..=300),
            (r#"{"accepted":301}"#, 1..=300),
        ] {
            let trouble = answered(400, body, sent).unwrap_err();
            assert!(trouble.is_for_good && trouble.to_string().contains("not the answer of a tidegauge to them"));
        }
        let limited = answered(429, r#"{"accepted":2}"#, 3..=3).unwrap_err();
        assert_eq!((limited.reason, limited.is_for_good), ("rate_limited", false));
    }

    #[test]
    fn counts_of_several_answers_do_not_overflow() {
        let mut all = Counts { accepted: 1, ignored: u64::MAX, ..Counts::default() };
        all.add(Counts { accepted: 2, ignored: 5, by_code: BTreeMap::from([("other", 2)]), ..Counts::default() });
        assert_eq!((all.accepted, all.ignored, all.by_code["other"]), (3, u64::MAX, 2));
    }
}
