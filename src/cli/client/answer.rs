//! The parts of an answer that a client uses: its body, when to try again, the text of a refusal.
//!
//! The server may be any program, so the body and the wait have limits.

use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use reqwest::{Response, StatusCode};
use tidegauge::forward::text_of;

/// The longest wait that a server may ask for. Longer ones would only delay the end of an outage.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// The most bytes of a verdict or a problem document. A list of a hundred rejections takes a fraction of it.
pub(in crate::cli) const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Whether the status reports a temporary failure.
pub(in crate::cli) fn is_temporary(status: StatusCode) -> bool {
    let passing = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ];
    passing.contains(&status)
}

/// The seconds of a `Retry-After`, if there are any.
pub(in crate::cli) fn retry_after(response: &Response) -> Option<Duration> {
    let seconds: u64 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

/// Reads the body of an answer, or some more than the first `bytes` of it if it is longer.
pub(in crate::cli) async fn read_at_most(bytes: usize, mut response: Response) -> reqwest::Result<Vec<u8>> {
    let mut body = Vec::new();
    while body.len() <= bytes
        && let Some(piece) = response.chunk().await?
    {
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// The text of a refusal.
pub(in crate::cli) fn refusal_text(url: &str, status: StatusCode, body: &[u8]) -> String {
    format!("{url} answered {status}: {}", text_of(body))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::cli::client::plain_http;

    #[tokio::test]
    async fn neither_the_size_of_an_answer_nor_the_wait_that_it_asks_for_is_without_bounds() {
        let app = axum::Router::new().fallback(|| async {
            let endless = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 1 << 16]));
            ([("retry-after", u64::MAX.to_string())], axum::body::Body::from_stream(endless))
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        let answer = plain_http().build().unwrap().get(format!("http://{address}")).send().await.unwrap();
        assert_eq!(retry_after(&answer), Some(MAX_RETRY_AFTER));
        let body = read_at_most(MAX_ANSWER_BYTES, answer).await.unwrap();
        assert!((MAX_ANSWER_BYTES..2 * MAX_ANSWER_BYTES).contains(&body.len()), "{}", body.len());
    }
}
