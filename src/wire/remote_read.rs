//! Prometheus remote read: the request (`prometheus.ReadRequest`), and the answer with samples
//! (`prometheus.ReadResponse`, before compression) or with chunks (frames of
//! `prometheus.ChunkedReadResponse`).
//!
//! Source: prompb/remote.proto, prompb/types.proto and storage/remote/chunked.go of Prometheus. The hints of
//! a query are ignored, as the protocol allows.

use super::protobuf::{Fields, ProtobufError, Writer};
pub use super::xor_chunk::Chunks;
use crate::common::leb128;

/// The most queries of a request. Prometheus sends one.
const MAX_QUERIES: usize = 16;

/// The most matchers of a query.
const MAX_MATCHERS: usize = 64;

/// Why a request cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteReadError {
    /// The body is not a `prometheus.ReadRequest`.
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
    /// The client takes no known kind of answer.
    #[error("accepted_response_types has neither SAMPLES nor STREAMED_XOR_CHUNKS")]
    Types,
}

/// A request of remote read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRequest<'b> {
    /// The queries. The answer has a result for each.
    pub queries: Vec<ReadQuery<'b>>,
    /// Whether the client prefers chunks to samples.
    pub wants_chunks: bool,
}

/// A query for the samples of matching series in a range of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadQuery<'b> {
    /// The first instant, in Unix milliseconds.
    pub first_ms: i64,
    /// The last instant, inclusive, in Unix milliseconds.
    pub last_ms: i64,
    /// The matchers. A series must meet all of them.
    pub matchers: Vec<ReadMatcher<'b>>,
}

/// A condition on a label of a series.
///
/// A label that the series lacks has the value `""`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadMatcher<'b> {
    /// Whether `value` is a regular expression for the whole value.
    pub is_regex: bool,
    /// Whether the label must not have the value.
    pub is_negative: bool,
    /// The name of the label.
    pub name: &'b str,
    /// The value of the label, or the regular expression.
    pub value: &'b str,
}

/// Reads a request.
///
/// # Errors
/// When the body is not a request, or has more than a request may have.
pub fn parse(body: &[u8]) -> Result<ReadRequest<'_>, RemoteReadError> {
    let (mut queries, mut wants_chunks, mut has_types) = (Vec::new(), None, false);
    let mut fields = Fields::of(body);
    while let Some(field) = fields.next()? {
        match field.number {
            1 if queries.len() == MAX_QUERIES => return Err(RemoteReadError::TooManyQueries),
            1 => queries.push(read_query(field.message()?)?),
            2 => {
                let mut types = field.varints()?;
                while let Some(of) = types.next()? {
                    has_types = true;
                    wants_chunks = wants_chunks.or(match of {
                        0 => Some(false),
                        1 => Some(true),
                        _ => None,
                    });
                }
            }
            _ => {}
        }
    }
    if has_types && wants_chunks.is_none() {
        return Err(RemoteReadError::Types);
    }
    Ok(ReadRequest { queries, wants_chunks: wants_chunks.unwrap_or(false) })
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
pub struct ReadSeries<S> {
    /// The labels, ascending by name.
    pub labels: Vec<(String, String)>,
    /// The samples in ascending order of time.
    pub samples: S,
}

/// The samples of a series, in the form of the answer.
pub trait Samples: Default + Send + 'static {
    /// Appends an instant, in Unix milliseconds, and its value.
    ///
    /// Returns how many bytes of memory they take.
    fn push(&mut self, ts_ms: i64, value: f64) -> usize;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool;
}

/// Instants in Unix milliseconds and values.
pub type PlainSamples = Vec<(i64, f64)>;

impl Samples for PlainSamples {
    fn push(&mut self, ts_ms: i64, value: f64) -> usize {
        self.push((ts_ms, value));
        size_of::<(i64, f64)>()
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl Samples for Chunks {
    fn push(&mut self, ts_ms: i64, value: f64) -> usize {
        self.push(ts_ms, value)
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// Writes an answer with samples: the series of each query.
#[must_use]
pub fn write(results: &[Vec<ReadSeries<PlainSamples>>]) -> Vec<u8> {
    let mut writer = Writer::default();
    for of_query in results {
        let result = writer.message(1);
        for ReadSeries { labels, samples } in of_query {
            let series = writer.message(1);
            write_labels(&mut writer, labels);
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

fn write_labels(writer: &mut Writer, labels: &[(String, String)]) {
    for (name, value) in labels {
        let label = writer.message(1);
        writer.bytes(1, name.as_bytes());
        writer.bytes(2, value.as_bytes());
        writer.end(label);
    }
}

/// The most bytes of the chunks of a frame.
///
/// With the labels of the series, the frame has less than 1 MiB.
const FRAME_BYTES: usize = 900 << 10;

/// The most bytes of a chunk besides its samples.
const BYTES_PER_CHUNK: usize = 48;

/// Writes a series as chunks, for the query with this index.
///
/// Calls `send` with each frame: one, or several for a long series.
pub fn write_frames(query: usize, series: ReadSeries<Chunks>, mut send: impl FnMut(Vec<u8>)) {
    let mut chunks = series.samples.finish().peekable();
    while chunks.peek().is_some() {
        let mut writer = Writer::default();
        let message = writer.message(1);
        write_labels(&mut writer, &series.labels);
        let mut left = FRAME_BYTES;
        while let Some(next) = chunks.next_if(|next| next.bytes.len() + BYTES_PER_CHUNK <= left) {
            left -= next.bytes.len() + BYTES_PER_CHUNK;
            let chunk = writer.message(2);
            writer.varint(1, next.first_ms.cast_unsigned());
            writer.varint(2, next.last_ms.cast_unsigned());
            writer.varint(3, 1); // XOR
            writer.bytes(4, &next.bytes);
            writer.end(chunk);
        }
        writer.end(message);
        writer.varint(2, query as u64);
        send(frame(&writer.into_bytes()));
    }
}

/// Puts the length and the checksum before a message.
fn frame(message: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(message.len() + 9);
    leb128::put(&mut frame, message.len() as u64);
    frame.extend_from_slice(&crc32c(message).to_be_bytes());
    frame.extend_from_slice(message);
    frame
}

/// CRC-32C (Castagnoli).
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < table.len() {
            let (mut crc, mut bit) = (byte as u32, 0);
            while bit < 8 {
                crc = crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, byte| crc >> 8 ^ TABLE[(crc as u8 ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    use super::super::xor_chunk;
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
        let ReadRequest { queries, wants_chunks } = parse(&body).unwrap();
        assert!(wants_chunks);
        assert_eq!((queries[0].first_ms, queries[0].last_ms), (-5, 7));
        let kinds: Vec<_> = queries[0].matchers.iter().map(|it| (it.is_regex, it.is_negative)).collect();
        assert_eq!(kinds, [(false, false), (false, true), (true, false), (true, true)]);
        assert!(queries[0].matchers.iter().all(|it| (it.name, it.value) == ("job", "a|b")));
        assert_eq!(parse(&[]), Ok(ReadRequest { queries: Vec::new(), wants_chunks: false }));
    }

    #[test]
    fn the_answer_is_of_the_first_type_that_is_known() {
        for (types, expected) in [(&[][..], false), (&[1], true), (&[0, 1], false), (&[7, 1, 0], true)] {
            assert_eq!(parse(&request(1, 0, types)).unwrap().wants_chunks, expected, "{types:?}");
        }
        assert_eq!(parse(&request(1, 0, &[7])), Err(RemoteReadError::Types));
    }

    #[test]
    fn a_frame_has_its_length_its_checksum_and_at_most_a_mebibyte() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        let labels = vec![("__name__".to_owned(), "temp".to_owned())];
        let mut samples = Chunks::default();
        // No value is like the one before it.
        let value = |nth: i64| f64::from_bits((nth as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let count = 200_000;
        (0..count).for_each(|nth| _ = samples.push(nth * 1_000, value(nth)));
        let mut frames = Vec::new();
        write_frames(3, ReadSeries { labels, samples }, |frame| frames.push(frame));
        assert!(frames.len() > 1 && frames.iter().all(|frame| frame.len() <= 1 << 20));
        let mut found = Vec::new();
        for frame in frames {
            let (length, rest) = frame.split_at(frame.iter().position(|byte| *byte < 0x80).unwrap() + 1);
            let (crc, message) = rest.split_first_chunk::<4>().unwrap();
            assert_eq!(u32::from_be_bytes(*crc), crc32c(message));
            let length = length.iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7F));
            assert_eq!(length, message.len());
            let mut fields = Fields::of(message);
            let mut of_series = fields.next().unwrap().unwrap().message().unwrap();
            assert_eq!(fields.next().unwrap().unwrap().varint(), Ok(3));
            let label = of_series.next().unwrap().unwrap();
            assert_eq!(label.number, 1, "each frame has the labels");
            while let Some(chunk) = of_series.next().unwrap() {
                let mut chunk = chunk.message().unwrap();
                let [first, last, kind] = [(); 3].map(|()| chunk.next().unwrap().unwrap().varint().unwrap());
                let samples = xor_chunk::tests::decode(chunk.next().unwrap().unwrap().bytes().unwrap());
                let edges = [samples[0].0, samples[samples.len() - 1].0].map(i64::cast_unsigned);
                assert_eq!(([first, last], kind), (edges, 1));
                found.extend(samples);
            }
        }
        assert!(found.into_iter().eq((0..count).map(|nth| (nth * 1_000, value(nth).to_bits()))));
    }

    #[test]
    fn a_request_that_cannot_be_answered_is_refused() {
        assert_eq!(parse(&request(17, 0, &[])), Err(RemoteReadError::TooManyQueries));
        assert_eq!(parse(&request(1, 65, &[])), Err(RemoteReadError::TooManyMatchers));
        assert_eq!(parse(&[0x0A, 4, 0x1A, 2, 0x08, 4]), Err(RemoteReadError::Matcher(4)));
        assert_eq!(parse(&[0x0A, 9]), Err(RemoteReadError::Protobuf(ProtobufError::Truncated)));
    }
}
