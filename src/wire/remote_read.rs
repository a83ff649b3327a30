//! Prometheus remote read: the request (`prometheus.ReadRequest`) and the answer with samples
//! (`prometheus.ReadResponse`), before compression.
//!
//! Source: prompb/remote.proto and prompb/types.proto of Prometheus. The hints of a query are ignored, as the
//! protocol allows.

use super::protobuf::{Fields, ProtobufError, Writer};

/// The most queries of a request. Prometheus sends one.
const MAX_QUERIES: usize = 16;

/// The most matchers of a query.
const MAX_MATCHERS: usize = 64;

/// A body is not a request that can be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteReadError {
    /// The body is not such a message.
    #[error(transparent)]
    Protobuf(#[from] ProtobufError),
    /// There are too many queries.
    #[error("a request has at most {MAX_QUERIES} queries")]
    TooManyQueries,
    /// A query has too many matchers.
    #[error("a query has at most {MAX_MATCHERS} matchers")]
    TooManyMatchers,
    /// A matcher has a kind that Prometheus does not have.
    #[error("a matcher has the unknown type {0}")]
    Matcher(u64),
    /// The client takes no samples.
    #[error("accepted_response_types lacks SAMPLES, and streamed chunks are not supported")]
    OnlyChunks,
}

/// A query: the samples of the series that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadQuery<'b> {
    /// The first instant, in Unix milliseconds.
    pub first_ms: i64,
    /// The last instant, inclusive, in Unix milliseconds.
    pub last_ms: i64,
    /// The matchers, each of which a series must meet.
    pub matchers: Vec<ReadMatcher<'b>>,
}

/// A condition on a label of a series. A label that the series lacks has the value `""`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadMatcher<'b> {
    /// Whether `value` is a regular expression for the whole value.
    pub is_regex: bool,
    /// Whether the value must be another one.
    pub is_negative: bool,
    /// The name of the label.
    pub name: &'b str,
    /// The value.
    pub value: &'b str,
}

/// Reads the queries of a request.
///
/// # Errors
/// When the body is not a request, or has more than a request may have.
pub fn parse(body: &[u8]) -> Result<Vec<ReadQuery<'_>>, RemoteReadError> {
    let (mut queries, mut takes_samples, mut has_types) = (Vec::new(), false, false);
    let mut fields = Fields::of(body);
    while let Some(field) = fields.next()? {
        match field.number {
            1 if queries.len() == MAX_QUERIES => return Err(RemoteReadError::TooManyQueries),
            1 => queries.push(read_query(field.message()?)?),
            2 => {
                let mut types = field.varints()?;
                while let Some(of) = types.next()? {
                    has_types = true;
                    takes_samples |= of == 0;
                }
            }
            _ => {}
        }
    }
    if has_types && !takes_samples {
        return Err(RemoteReadError::OnlyChunks);
    }
    Ok(queries)
}

fn read_query(mut fields: Fields<'_>) -> Result<ReadQuery<'_>, RemoteReadError> {
    let mut query = ReadQuery { first_ms: 0, last_ms: 0, matchers: Vec::new() };
    while let Some(field) = fields.next()? {
        match field.number {
            1 => query.first_ms = field.varint()?.cast_signed(),
            2 => query.last_ms = field.varint()?.cast_signed(),
            3 if query.matchers.len() == MAX_MATCHERS => return Err(RemoteReadError::TooManyMatchers),
            3 => query.matchers.push(read_matcher(field.message()?)?),
            _ => {}
        }
    }
    Ok(query)
}

fn read_matcher(mut fields: Fields<'_>) -> Result<ReadMatcher<'_>, RemoteReadError> {
    let (mut of, mut name, mut value) = (0, "", "");
    while let Some(field) = fields.next()? {
        match field.number {
            1 => of = field.varint()?,
            2 => name = field.text()?,
            3 => value = field.text()?,
            _ => {}
        }
    }
    let (is_regex, is_negative) = match of {
        0 => (false, false),
        1 => (false, true),
        2 => (true, false),
        3 => (true, true),
        unknown => return Err(RemoteReadError::Matcher(unknown)),
    };
    Ok(ReadMatcher { is_regex, is_negative, name, value })
}

/// A series of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadSeries {
    /// The labels, ascending by name.
    pub labels: Vec<(String, String)>,
    /// Instants in Unix milliseconds and values, ascending.
    pub samples: Vec<(i64, f64)>,
}

/// Writes an answer: the series of each query.
#[must_use]
pub fn write(results: &[Vec<ReadSeries>]) -> Vec<u8> {
    let mut writer = Writer::default();
    for of_query in results {
        let result = writer.message(1);
        for ReadSeries { labels, samples } in of_query {
            let series = writer.message(1);
            for (name, value) in labels {
                let label = writer.message(1);
                writer.bytes(1, name.as_bytes());
                writer.bytes(2, value.as_bytes());
                writer.end(label);
            }
            for (ts_ms, value) in samples {
                let sample = writer.message(2);
                writer.fixed64(1, value.to_bits());
                writer.varint(2, ts_ms.cast_unsigned());
                writer.end(sample);
            }
            writer.end(series);
        }
        writer.end(result);
    }
    writer.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(queries: usize, matchers: usize, types: &[u64]) -> Vec<u8> {
        let mut writer = Writer::default();
        for _ in 0..queries {
            let query = writer.message(1);
            writer.varint(1, (-5_i64).cast_unsigned());
            writer.varint(2, 7);
            for of in 0..matchers {
                let matcher = writer.message(3);
                writer.varint(1, of as u64 % 4);
                writer.bytes(2, b"job");
                writer.bytes(3, b"a|b");
                writer.end(matcher);
            }
            writer.end(query);
        }
        for of in types {
            writer.varint(2, *of);
        }
        writer.into_bytes()
    }

    #[test]
    fn a_request_has_queries_with_ranges_and_matchers() {
        let body = request(1, 4, &[1, 0]);
        let queries = parse(&body).unwrap();
        assert_eq!((queries[0].first_ms, queries[0].last_ms), (-5, 7));
        let kinds: Vec<_> = queries[0].matchers.iter().map(|it| (it.is_regex, it.is_negative)).collect();
        assert_eq!(kinds, [(false, false), (false, true), (true, false), (true, true)]);
        assert!(queries[0].matchers.iter().all(|it| (it.name, it.value) == ("job", "a|b")));
        assert_eq!(parse(&[]), Ok(Vec::new()));
    }

    #[test]
    fn a_request_that_cannot_be_answered_is_refused() {
        assert_eq!(parse(&request(1, 0, &[1])), Err(RemoteReadError::OnlyChunks));
        assert_eq!(parse(&request(17, 0, &[])), Err(RemoteReadError::TooManyQueries));
        assert_eq!(parse(&request(1, 65, &[])), Err(RemoteReadError::TooManyMatchers));
        assert_eq!(parse(&[0x0A, 4, 0x1A, 2, 0x08, 4]), Err(RemoteReadError::Matcher(4)));
        assert_eq!(parse(&[0x0A, 9]), Err(RemoteReadError::Protobuf(ProtobufError::Truncated)));
    }
}
