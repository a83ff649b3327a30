//! The meaning of an answer to a batch.

use std::time::Duration;

use reqwest::StatusCode;
use serde::Deserialize;
use strum::IntoEnumIterator;

use crate::wire::Code;

/// The reason of a refused reading whose code this version does not know.
const OTHER: &str = "other";

/// The code of a server that fails on a request, and the reason of a reading on which it fails each time.
pub(super) const INTERNAL: &str = "internal";

/// The most characters of a detail that are kept.
const DETAIL_CHARS: usize = 1_000;

/// The most characters that are kept of an answer that is no problem document.
const SHOWN_CHARS: usize = 200;

/// The verdict of the other server on a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Each of its readings, or each of the first ones, is accepted or refused.
    Judged(Judged),
    /// The request is too large, so none is accepted.
    TooLarge(String),
}

/// The verdict on the first readings of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judged {
    /// The number of readings that the verdict is about. The server has counted the others too, but does not
    /// name those that it refuses.
    pub(super) known: usize,
    /// The readings that are refused for good, by their places in the request.
    pub(super) refused: Vec<Refused>,
    /// The places of the readings that may be accepted later.
    pub(super) later: Vec<usize>,
}

/// A reading that the other server refuses for good.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its place: in the request, and later in the batch.
    pub at: usize,
    /// The code.
    pub reason: &'static str,
    /// The text of the server.
    pub detail: String,
}

/// The body of an answer that counts readings.
#[derive(Deserialize)]
struct Counts {
    accepted: u64,
    #[serde(default)]
    rejected: u64,
    #[serde(default, rename = "rejectedValues")]
    rejected_values: u64,
    #[serde(default)]
    errors: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    index: usize,
    code: String,
    detail: String,
}

/// A problem document.
#[derive(Deserialize)]
struct Problem {
    code: String,
    detail: String,
}

/// The verdict in an answer to `sent` readings; `None` if the answer is none, such as that of a proxy.
pub(super) fn verdict(status: StatusCode, body: &[u8], sent: usize) -> Option<Verdict> {
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        // A proxy may have a limit of its own. It does not judge a single reading.
        let is_problem = serde_json::from_slice::<Problem>(body).is_ok();
        return (is_problem || sent > 1).then(|| Verdict::TooLarge(text_of(body)));
    }
    let counts: Counts = serde_json::from_slice(body).ok()?;
    let is_verdict = match status {
        StatusCode::OK => counts.rejected == 0,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::TOO_MANY_REQUESTS => true,
        _ => false,
    };
    let is_of_all = counts.accepted.checked_add(counts.rejected) == Some(sent as u64);
    (is_verdict && is_of_all).then_some(())?;
    counts.judge(sent).map(Verdict::Judged)
}

impl Counts {
    /// The list has the first hundred rejections in the order of the request. So if it lacks some, nothing
    /// is known of the readings behind the last one in it. `None`: the list contradicts the counts.
    fn judge(self, sent: usize) -> Option<Judged> {
        let is_whole = self.errors.len() as u64 >= self.rejected.saturating_add(self.rejected_values);
        let mut judged = Judged { known: sent, ..Judged::default() };
        let mut last = None;
        for Listed { index, code, detail } in self.errors {
            if index >= sent || last.is_some_and(|last| index < last) {
                return None;
            }
            let code = Code::iter().find(|known| known.as_str() == code);
            if last.replace(index) == Some(index) {
                continue; // several values of one reading
            }
            if code.is_some_and(Code::is_for_now) {
                judged.later.push(index);
            } else {
                let (reason, detail) = (code.map_or(OTHER, Code::as_str), beginning(&detail, DETAIL_CHARS));
                judged.refused.push(Refused { at: index, reason, detail });
            }
        }
        if !is_whole {
            judged.known = last? + 1;
        }
        let named = judged.refused.len() + judged.later.len();
        (!is_whole || named as u64 >= self.rejected).then_some(judged)
    }
}

/// Whether an answer is the problem of a server that has failed on this request, in the form of this API. The
/// cause may be one of its readings.
pub(super) fn is_failure(status: StatusCode, body: &[u8]) -> bool {
    let is_internal = |problem: Problem| problem.code == INTERNAL;
    status == StatusCode::INTERNAL_SERVER_ERROR && serde_json::from_slice(body).is_ok_and(is_internal)
}

/// The text of a problem document or of any other body. Of a long one the beginning, because it goes to logs
/// and dead letters.
#[must_use]
pub fn text_of(body: &[u8]) -> String {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => beginning(&format!("{}: {}", problem.code, problem.detail), DETAIL_CHARS),
        Err(_) => beginning(&String::from_utf8_lossy(body), SHOWN_CHARS),
    }
}

fn beginning(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

/// The reasons of refused readings.
pub(super) fn refusal_reasons() -> Vec<&'static str> {
    Code::iter().filter(|code| !code.is_for_now()).map(Code::as_str).chain([OTHER, INTERNAL]).collect()
}

/// The wait that the header `Retry-After` asks for. A date in it is ignored.
pub(super) fn retry_after(headers: &reqwest::header::HeaderMap) -> Option<Duration> {
    /// Longer waits would only delay the end of an outage.
    const MAX: Duration = Duration::from_secs(300);
    let seconds: u64 = headers.get(reqwest::header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds).min(MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, body: &str, sent: usize) -> Option<Judged> {
        match verdict(StatusCode::from_u16(status).unwrap(), body.as_bytes(), sent)? {
            Verdict::Judged(judged) => Some(judged),
            Verdict::TooLarge(why) => panic!("{why}"),
        }
    }

    #[test]
    fn only_an_answer_that_counts_each_reading_is_a_verdict() {
        let all = Judged { known: 3, ..Judged::default() };
        assert_eq!(judged(200, r#"{"accepted":3}"#, 3), Some(all));
        for (status, body) in [
            (200, r#"{"accepted":2}"#),
            (200, r#"{"accepted":2,"rejected":1,"errors":[{"index":0,"code":"invalid_value","detail":""}]}"#),
            (200, "<html>Welcome</html>"),
            (200, ""),
            (204, r#"{"accepted":3}"#),
            (302, r#"{"accepted":3}"#),
            (400, r#"{"code":"invalid_json","detail":"x"}"#),
            (400, r#"{"accepted":18446744073709551615,"rejected":4,"errors":[]}"#),
            (401, r#"{"code":"unauthorized","detail":"x"}"#),
            (403, r#"{"accepted":3}"#),
            (404, "not found"),
            (429, r#"{"code":"rate_limited","detail":"x"}"#),
            (503, r#"{"accepted":3}"#),
        ] {
            assert_eq!(judged(status, body, 3), None, "{status} {body}");
        }
    }

    #[test]
    fn a_request_is_too_large_whoever_says_so_but_a_reading_only_if_the_server_does() {
        let verdict = |body: &str, sent| verdict(StatusCode::PAYLOAD_TOO_LARGE, body.as_bytes(), sent);
        let problem = r#"{"code":"body_too_large","detail":"at most 9 bytes"}"#;
        for sent in [1, 2] {
            let text = "body_too_large: at most 9 bytes".to_owned();
            assert_eq!(verdict(problem, sent), Some(Verdict::TooLarge(text)));
        }
        assert_eq!(verdict("<html>", 2), Some(Verdict::TooLarge("<html>".to_owned())));
        assert_eq!(verdict("<html>", 1), None);
    }

    #[test]
    fn only_the_beginning_of_a_long_text_is_kept() {
        let long = "ü".repeat(100_000);
        let problem = format!(r#"{{"code":"x","detail":"{long}"}}"#);
        assert_eq!(text_of(problem.as_bytes()).chars().count(), DETAIL_CHARS);
        assert_eq!(text_of(long.as_bytes()).chars().count(), SHOWN_CHARS);
        let errors = format!(r#"[{{"index":0,"code":"invalid_value","detail":"{long}"}}]"#);
        let found = judged(400, &format!(r#"{{"accepted":0,"rejected":1,"errors":{errors}}}"#), 1).unwrap();
        assert_eq!(found.refused[0].detail.chars().count(), DETAIL_CHARS);
    }

    #[test]
    fn only_the_problem_of_this_api_says_that_the_server_failed_on_the_request() {
        let is_failure = |status, body: &str| is_failure(StatusCode::from_u16(status).unwrap(), body.as_bytes());
        assert!(is_failure(500, r#"{"code":"internal","detail":"see its log"}"#));
        for (status, body) in [
            (503, r#"{"code":"internal","detail":"x"}"#),
            (500, r#"{"code":"overloaded","detail":"x"}"#),
            (500, "<html>proxy</html>"),
            (500, ""),
        ] {
            assert!(!is_failure(status, body), "{status} {body}");
        }
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
            refused: vec![refused(1, "timestamp_too_old", "b"), refused(3, OTHER, "c")],
            later: vec![0],
        };
        assert_eq!(judged(429, body, 4), Some(expected));
    }

    #[test]
    fn behind_the_end_of_a_list_that_lacks_rejections_nothing_is_known() {
        let body = r#"{"accepted":5,"rejected":5,"errors":[
            {"index":2,"code":"invalid_value","detail":"a"},{"index":4,"code":"invalid_value","detail":"b"}]}"#;
        let found = judged(400, body, 10).unwrap();
        assert_eq!((found.known, found.refused.len()), (5, 2));
    }

    #[test]
    fn several_values_of_one_reading_are_one_refused_reading() {
        let body = r#"{"accepted":2,"rejected":0,"rejectedValues":2,"errors":[
            {"index":1,"code":"series_too_long","detail":"a"},{"index":1,"code":"series_too_long","detail":"b"}]}"#;
        let found = judged(400, body, 2).unwrap();
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
            let body = format!(r#"{{"accepted":1,"rejected":2,"errors":{errors}}}"#);
            assert_eq!(judged(400, &body, 3), None, "{errors}");
        }
    }
}
