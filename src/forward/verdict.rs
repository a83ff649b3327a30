//! Reads from the other server's answer what it decides about each reading.

use std::time::Duration;

use strum::IntoEnumIterator;

use crate::client::{self, Body, Client, Counts, Listed, METADATA, READINGS, Trouble};
use crate::wire::Code;

/// The other server's answer to a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    /// The wait that the server asks for before readings are sent again.
    pub(super) retry_after: Option<Duration>,
}

/// The other server's decision about the readings of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The server decides about each reading, or about each of the first ones.
    Judged(Judged),
    /// The request is too large, so no reading is accepted. Has the server's text.
    TooLarge(String),
}

/// The decision about each of the first `known` readings of a request.
///
/// A reading that is neither in `refused` nor in `later` is accepted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judged {
    /// The number of readings, from the first one on, whose outcome is known.
    ///
    /// The server has decided about the other readings too, but its list does not show which it refuses.
    pub(super) known: usize,
    /// The readings that are refused for good, with their places in the request.
    pub(super) refused: Vec<Refused>,
    /// The places of the readings that are refused only for now.
    pub(super) later: Vec<usize>,
}

/// A reading that the other server refuses for good.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// The place of the reading in the request.
    ///
    /// [`super::requests`] replaces it by the number of the reading in the batch.
    pub(super) at: usize,
    /// The code of the refusal, such as `invalid_value`.
    pub(super) reason: &'static str,
    /// The server's description of the refusal.
    pub(super) detail: String,
}

/// Sends a body with readings, without retries.
///
/// # Errors
/// When the answer has no decision about the readings. The body can safely be sent again.
pub(super) async fn send(client: &Client, body: &Body) -> Result<Answer, Trouble> {
    let sent = usize::try_from(body.max_readings()).unwrap_or(usize::MAX);
    match client.post(READINGS, body).await {
        Ok(answer) => {
            let retry_after = answer.retry_after;
            let contradiction =
                || Trouble::unexpected(client.url(), "its list of rejections contradicts its counts".into());
            let judged = Judged::of(answer, sent).ok_or_else(contradiction)?;
            Ok(Answer { verdict: Verdict::Judged(judged), retry_after })
        }
        // A proxy may have a smaller limit than the server. For a single reading, only the server's own limit
        // counts as a refusal.
        Err(trouble) if trouble.is_too_large() && (trouble.is_problem() || sent > 1) => {
            Ok(Answer { verdict: Verdict::TooLarge(trouble.said().to_owned()), retry_after: trouble.retry_after })
        }
        Err(trouble) => Err(trouble),
    }
}

/// Tests whether the other server accepts readings from this one.
///
/// It sends an empty batch with the token, without retries. This changes nothing at the other server.
///
/// # Errors
/// When the other server does not answer as it would to a batch that it accepts.
pub async fn probe(client: &Client) -> Result<(), Trouble> {
    match send(client, &Body::of(b"", Some(0))).await?.verdict {
        Verdict::Judged(_) => Ok(()),
        Verdict::TooLarge(why) => {
            Err(Trouble::unexpected(client.url(), format!("it refuses an empty batch as too large: {why}")))
        }
    }
}

/// Tests whether the other server accepts metadata that operators set here.
///
/// It sends no change with the token, without retries.
///
/// # Errors
/// When the other server does not answer as it would to changes that it accepts.
pub async fn probe_metadata(client: &Client) -> Result<(), Trouble> {
    client.post(METADATA, &Body::of(b"", Some(0))).await.map(|_| ())
}

impl Judged {
    /// Reads the decisions from an answer; `None` if its list contradicts its counts.
    ///
    /// The list has the first hundred rejections in the order of the request. If there are more rejections,
    /// nothing is known about the readings after the last listed one.
    fn of(answer: client::Answer, sent: usize) -> Option<Self> {
        let client::Answer { counts, listed, .. } = answer;
        if counts.older > 0 {
            return None; // only dead letters are answered so
        }
        let is_whole = listed.len() as u64 >= counts.rejected.saturating_add(counts.rejected_values);
        let mut judged = Self { known: sent, ..Self::default() };
        let mut last = None;
        for listed in listed {
            let (code, Listed { index, detail, .. }) = (listed.known_code(), listed);
            if index >= sent || last.is_some_and(|last| index < last) {
                return None;
            }
            if last.replace(index) == Some(index) {
                continue; // several values of one reading
            }
            if code.is_some_and(Code::is_for_now) {
                judged.later.push(index);
            } else {
                judged.refused.push(Refused { at: index, reason: code.map_or(Counts::OTHER, Code::as_str), detail });
            }
        }
        if !is_whole {
            judged.known = last? + 1;
        }
        let named = judged.refused.len() + judged.later.len();
        (!is_whole || named as u64 >= counts.rejected).then_some(judged)
    }
}

/// All values of the label `reason` in the metric of refused readings.
pub(super) fn refusal_reasons() -> Vec<&'static str> {
    let for_good = Code::iter().filter(|code| !code.is_for_now()).map(Code::as_str);
    for_good.chain([Counts::OTHER, Trouble::INTERNAL]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(body: &str, sent: usize) -> Option<Judged> {
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let listed = body.get("errors").map_or_else(Vec::new, |errors| serde_json::from_value(errors.clone()).unwrap());
        let counts = serde_json::from_value(body).unwrap();
        Judged::of(client::Answer { counts, listed, ..client::Answer::default() }, sent)
    }

    #[test]
    fn rejections_are_for_good_or_for_now() {
        let body = r#"{"code":"rate_limited","detail":"x","accepted":1,"rejected":3,"errors":[
            {"index":0,"code":"device_rate_limited","detail":"a"},
            {"index":1,"code":"timestamp_too_old","detail":"b"},
            {"index":3,"code":"from_the_future","detail":"c"}]}"#;
        let refused = |at, reason, detail: &str| Refused { at, reason, detail: detail.to_owned() };
        let expected = Judged {
            known: 4,
            refused: vec![refused(1, "timestamp_too_old", "b"), refused(3, "other", "c")],
            later: vec![0],
        };
        assert_eq!(judged(body, 4), Some(expected));
        assert_eq!(judged(r#"{"accepted":3}"#, 3), Some(Judged { known: 3, ..Judged::default() }));
    }

    #[test]
    fn behind_the_end_of_a_list_that_lacks_rejections_nothing_is_known() {
        let body = r#"{"accepted":5,"rejected":5,"errors":[
            {"index":2,"code":"invalid_value","detail":"a"},{"index":4,"code":"invalid_value","detail":"b"}]}"#;
        let found = judged(body, 10).unwrap();
        assert_eq!((found.known, found.refused.len()), (5, 2));
    }

    #[test]
    fn several_values_of_one_reading_are_one_refused_reading() {
        let body = r#"{"accepted":2,"rejected":0,"rejectedValues":2,"errors":[
            {"index":1,"code":"series_too_long","detail":"a"},{"index":1,"code":"series_too_long","detail":"b"}]}"#;
        let found = judged(body, 2).unwrap();
        assert_eq!((found.known, found.refused.len(), found.refused[0].at), (2, 1, 1));
    }

    #[test]
    fn a_list_that_contradicts_the_counts_is_no_verdict() {
        for errors in [
            "[]",
            r#"[{"index":18446744073709551615,"code":"invalid_value","detail":""}]"#,
            r#"[{"index":9,"code":"invalid_value","detail":""}]"#,
            r#"[{"index":1,"code":"invalid_value","detail":""},{"index":1,"code":"invalid_value","detail":""}]"#,
            r#"[{"index":1,"code":"invalid_value","detail":""},{"index":0,"code":"invalid_value","detail":""}]"#,
        ] {
            assert_eq!(judged(&format!(r#"{{"accepted":1,"rejected":2,"errors":{errors}}}"#), 3), None, "{errors}");
        }
        assert_eq!(judged(r#"{"accepted":2,"older":1}"#, 3), None, "an answer to dead letters");
    }
}
