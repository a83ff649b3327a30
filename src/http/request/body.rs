//! Request bodies: received and decompressed within limits.

use std::io::Read;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http_body_util::BodyExt;
use tokio::task::JoinError;

use super::turn::{DECOMPRESSING, in_turn};
use crate::http::App;
use crate::ingest::RefusalReason;
use crate::limits::{Exhausted, Quota, Reservation};
use crate::wire::Format;

/// The first memory for a decompressed body, in bytes. It doubles as needed.
const FIRST_BYTES: usize = 16 << 10;

/// The most bytes of a body that the thread of its connection decompresses.
///
/// Such a body may expand a thousandfold, which takes some milliseconds. A larger body would delay other
/// requests, so a blocking thread decompresses it.
const INLINE_BYTES: usize = 4 << 10;

/// The memory that a body may reserve before it arrives, in bytes.
///
/// Many bodies are smaller. They are refused at their beginning if there is no memory.
const FIRST_RESERVED_BYTES: usize = 16 << 10;

/// How many times its size so far a body may reserve.
const RESERVED_AHEAD: usize = 8;

/// The largest window of a zstd stream, as a power of two: 8 MiB.
///
/// RFC 8878 recommends that decoders support it. A stream may declare a far larger window, and the decoder
/// would allocate it.
const ZSTD_WINDOW_LOG: u32 = 23;

/// The most bytes that a byte of snappy expands to.
///
/// An element of three bytes copies at most 64 bytes.
const SNAPPY_MAX_RATIO: usize = 22;

/// A body in memory, with its reservation of the memory for bodies.
#[derive(Debug)]
pub(in crate::http) struct Received {
    pub(in crate::http) bytes: Bytes,
    #[expect(dead_code, reason = "dropped with the body, which returns its memory")]
    pub(super) reservation: Reservation,
}

/// Why a request is refused before its body is parsed.
#[derive(Debug, thiserror::Error)]
pub(in crate::http) enum BodyError {
    /// No header states the length of the body.
    #[error("the request has no body: it has neither Content-Length nor Transfer-Encoding: chunked")]
    LengthRequired,
    /// The `Content-Encoding` is unknown.
    #[error("expected Content-Encoding gzip, zstd or deflate, found \"{0}\"")]
    UnsupportedEncoding(String),
    /// The body is larger than this many bytes.
    #[error("a body has at most {0} bytes, decompressed (http.max_body_bytes)")]
    TooLarge(usize),
    /// The body was not complete in time.
    #[error("the body did not arrive within http.body_timeout")]
    Timeout,
    /// The connection broke off, or the chunks are malformed.
    #[error("{0}")]
    Broken(axum::Error),
    /// The body is not in the encoding that it claims.
    #[error("not decompressed: {0}")]
    NotDecompressed(std::io::Error),
    /// A limit on the memory of bodies is reached.
    #[error("the bodies of all requests together have reached http.max_bytes_in_flight; try again later")]
    NoMemory(Exhausted),
    /// The thread that decompressed the body ended early.
    #[error("{0}")]
    Internal(JoinError),
}

impl BodyError {
    /// Returns the reason under which the metrics count the request.
    pub(in crate::http) const fn reason(&self) -> RefusalReason {
        match self {
            Self::LengthRequired | Self::Broken(_) | Self::NotDecompressed(_) => RefusalReason::InvalidBody,
            Self::UnsupportedEncoding(_) => RefusalReason::UnsupportedMediaType,
            Self::TooLarge(_) => RefusalReason::BodyTooLarge,
            Self::Timeout => RefusalReason::BodyTimeout,
            Self::NoMemory(Exhausted::All) => RefusalReason::Overloaded,
            Self::NoMemory(Exhausted::Token) => RefusalReason::RateLimited,
            Self::Internal(_) => RefusalReason::Internal,
        }
    }
}

/// Returns the media type of a body without and with its parameters.
///
/// For `text/csv; charset=utf-8`, it returns `("text/csv", "text/csv; charset=utf-8")`. Both are empty if the
/// header is missing.
pub(in crate::http) fn media_type(headers: &HeaderMap) -> (&str, &str) {
    let value = headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or_default());
    (value.split(';').next().unwrap_or_default().trim(), value)
}

/// Refuses a request that does not state the length of its body.
///
/// Such a request has no body (RFC 9112, section 6.3): the server would read the bytes that follow as the
/// next request.
pub(in crate::http) fn require_length(headers: &HeaderMap) -> Result<(), BodyError> {
    let is_stated = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING].iter().any(|name| headers.contains_key(name));
    if is_stated { Ok(()) } else { Err(BodyError::LengthRequired) }
}

/// Receives a body of readings in `format`, and decodes its `Content-Encoding`.
pub(in crate::http) async fn receive(
    app: &App,
    quota: &Quota,
    format: Format,
    headers: &HeaderMap,
    body: Body,
) -> Result<Received, BodyError> {
    let encoding = Encoding::of(headers, format)?;
    let mut reservation = app.body_memory.reservation(quota);
    let receiving = collect(app.limits.max_body_bytes, headers, body, &mut reservation);
    let bytes = tokio::time::timeout(app.limits.body_timeout, receiving).await.map_err(|_| BodyError::Timeout)??;
    let Some(encoding) = encoding else { return Ok(Received { bytes, reservation }) };
    decode(bytes, encoding, app.limits.max_body_bytes, reservation).await
}

/// Decompresses a body on this thread if it is small, else on a blocking thread when it is its turn.
async fn decode(bytes: Bytes, encoding: Encoding, max: usize, reservation: Reservation) -> Result<Received, BodyError> {
    if bytes.len() <= INLINE_BYTES {
        return decompress(&bytes, encoding, max, reservation);
    }
    let work = move || decompress(&bytes, encoding, max, reservation);
    in_turn(&DECOMPRESSING, work).await.map_err(BodyError::Internal)?
}

/// Receives a body of up to `max` bytes.
///
/// It reserves memory as the body arrives. A client that only declares a large body holds little.
async fn collect(
    max: usize,
    headers: &HeaderMap,
    mut body: Body,
    reservation: &mut Reservation,
) -> Result<Bytes, BodyError> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|length| length > max) {
        return Err(BodyError::TooLarge(max));
    }
    reservation.grow_to(declared.unwrap_or(0).min(FIRST_RESERVED_BYTES)).map_err(BodyError::NoMemory)?;
    let mut first = Bytes::new();
    let mut whole: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(BodyError::Broken)?;
        let Ok(data) = frame.into_data() else { continue };
        let length = first.len() + whole.len() + data.len();
        if length > max {
            return Err(BodyError::TooLarge(max));
        }
        if length > reservation.held_bytes() {
            let ahead = declared.map_or(length, |declared| declared.min(length * RESERVED_AHEAD));
            reservation.grow_to(ahead.max(length)).map_err(BodyError::NoMemory)?;
        }
        if first.is_empty() && whole.is_empty() {
            first = data; // most bodies arrive in one piece, which is not copied
        } else {
            if length > whole.capacity() {
                // The reservation grows in large steps. Without a declared length, it grows with each piece.
                let more = reservation.held_bytes() - whole.len();
                match declared {
                    Some(_) => whole.reserve_exact(more),
                    None => whole.reserve(more),
                }
            }
            whole.extend_from_slice(&std::mem::take(&mut first));
            whole.extend_from_slice(&data);
        }
    }
    Ok(if whole.is_empty() { first } else { whole.into() })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Gzip,
    Zstd,
    Deflate,
    /// A block of snappy, without frames.
    Snappy,
}

impl Encoding {
    /// Returns the encoding of a body by its headers; `None`: not compressed.
    ///
    /// Remote write is snappy unless the headers name another encoding. No other format may be snappy,
    /// because elsewhere `snappy` often means a stream with frames.
    fn of(headers: &HeaderMap, format: Format) -> Result<Option<Self>, BodyError> {
        let is_remote_write = format == Format::RemoteWrite;
        let Some(value) = headers.get(header::CONTENT_ENCODING) else {
            return Ok(is_remote_write.then_some(Self::Snappy));
        };
        let name = value.to_str().unwrap_or_default().trim();
        match name.to_ascii_lowercase().as_str() {
            "snappy" if is_remote_write => Ok(Some(Self::Snappy)),
            "identity" | "" => Ok(None),
            "gzip" | "x-gzip" => Ok(Some(Self::Gzip)),
            "zstd" => Ok(Some(Self::Zstd)),
            "deflate" => Ok(Some(Self::Deflate)),
            _ => Err(BodyError::UnsupportedEncoding(name.to_owned())),
        }
    }
}

fn decompress(bytes: &Bytes, encoding: Encoding, max: usize, reservation: Reservation) -> Result<Received, BodyError> {
    match encoding {
        Encoding::Gzip => inflate(MultiGzDecoder::new(&bytes[..]), max, reservation),
        Encoding::Zstd => {
            let mut decoder = zstd::Decoder::new(&bytes[..]).map_err(BodyError::NotDecompressed)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(BodyError::NotDecompressed)?;
            inflate(decoder, max, reservation)
        }
        // RFC 9110 defines deflate as zlib; some clients send the bare stream.
        Encoding::Deflate if is_zlib(bytes) => inflate(ZlibDecoder::new(&bytes[..]), max, reservation),
        Encoding::Deflate => inflate(DeflateDecoder::new(&bytes[..]), max, reservation),
        Encoding::Snappy => unsnap(bytes, max, reservation),
    }
}

/// Decompresses a block of snappy, which begins with the decompressed length.
fn unsnap(bytes: &[u8], max: usize, mut reservation: Reservation) -> Result<Received, BodyError> {
    let not_decompressed = |error: snap::Error| BodyError::NotDecompressed(error.into());
    let length = snap::raw::decompress_len(bytes).map_err(not_decompressed)?;
    if length > max {
        return Err(BodyError::TooLarge(max));
    }
    if length > SNAPPY_MAX_RATIO * bytes.len() {
        let why = format!("{} bytes of snappy cannot become {length}", bytes.len());
        return Err(BodyError::NotDecompressed(std::io::Error::other(why)));
    }
    reservation.grow_to(reservation.held_bytes() + length).map_err(BodyError::NoMemory)?;
    let mut whole = vec![0; length];
    snap::raw::Decoder::new().decompress(bytes, &mut whole).map_err(not_decompressed)?;
    Ok(Received { bytes: whole.into(), reservation })
}

/// Whether a deflated body has the header of zlib (RFC 1950, section 2.2).
///
/// The method is 8, and the first two bytes are a multiple of 31.
fn is_zlib(bytes: &[u8]) -> bool {
    matches!(bytes, [first, second, ..] if first & 0x0f == 8 && (u16::from(*first) << 8 | u16::from(*second)) % 31 == 0)
}

fn inflate(mut from: impl Read, max: usize, mut reservation: Reservation) -> Result<Received, BodyError> {
    let compressed = reservation.held_bytes();
    let mut whole = Vec::new();
    loop {
        // This loop and not the reader allocates the memory, so that the limit accounts for all of it. One
        // byte above the limit reveals a body that is too large.
        let room = whole.capacity().max(FIRST_BYTES).min(max + 1 - whole.len());
        reservation.grow_to(compressed + whole.len() + room).map_err(BodyError::NoMemory)?;
        whole.reserve_exact(room);
        let before = whole.len();
        let step = from.by_ref().take(room as u64).read_to_end(&mut whole);
        step.map_err(BodyError::NotDecompressed)?;
        if whole.len() > max {
            return Err(BodyError::TooLarge(max));
        }
        if whole.len() < before + room {
            return Ok(Received { bytes: whole.into(), reservation });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::super::turn;
    use super::*;
    use crate::limits::BodyMemory;

    fn try_decompress(bytes: &[u8], encoding: Encoding, max: usize, memory: usize) -> Result<Vec<u8>, BodyError> {
        let reservation = BodyMemory::new(memory).reservation(Quota::unlimited());
        Ok(decompress(&bytes.to_vec().into(), encoding, max, reservation)?.bytes.to_vec())
    }

    fn encode(bytes: &[u8], encoding: Encoding) -> Vec<u8> {
        match encoding {
            Encoding::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
                encoder.write_all(bytes).expect("memory");
                encoder.finish().expect("memory")
            }
            Encoding::Zstd => zstd::encode_all(bytes, 3).expect("memory"),
            Encoding::Deflate => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
                encoder.write_all(bytes).expect("memory");
                encoder.finish().expect("memory")
            }
            Encoding::Snappy => snap::raw::Encoder::new().compress_vec(bytes).expect("memory"),
        }
    }

    const ALL: [Encoding; 4] = [Encoding::Gzip, Encoding::Zstd, Encoding::Deflate, Encoding::Snappy];

    #[tokio::test]
    async fn a_body_reserves_memory_as_it_arrives() {
        const DECLARED: usize = 1 << 20;
        let memory = BodyMemory::new(8 << 20);
        let headers = HeaderMap::from_iter([(header::CONTENT_LENGTH, DECLARED.into())]);
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel::<std::io::Result<Vec<u8>>>();
        let body = Body::from_stream(futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx)));
        let mut reservation = memory.reservation(Quota::unlimited());
        let mut received = std::pin::pin!(collect(DECLARED, &headers, body, &mut reservation));
        let mut sent = 0;
        for (piece, reserved) in [
            (0, FIRST_RESERVED_BYTES),
            (1, FIRST_RESERVED_BYTES),
            (FIRST_RESERVED_BYTES - 1, FIRST_RESERVED_BYTES),
            (1, 8 * (FIRST_RESERVED_BYTES + 1)),
            (7 * FIRST_RESERVED_BYTES, 8 * (FIRST_RESERVED_BYTES + 1)),
            (8, DECLARED),
        ] {
            sent += piece;
            sender.send(Ok(vec![b'x'; piece])).expect("it receives");
            assert!(received.as_mut().now_or_never().is_none());
            assert_eq!(memory.in_flight(), reserved, "{sent} bytes");
        }
        sender.send(Ok(vec![b'x'; DECLARED - sent])).expect("it receives");
        drop(sender);
        assert!(received.await.expect("a body") == vec![b'x'; DECLARED]);
        assert_eq!(memory.in_flight(), DECLARED);
    }

    #[test]
    fn each_encoding_is_undone_up_to_the_limit_and_no_further() {
        let body: Vec<u8> = (0..600_000_u32).map(|at| (at % 251) as u8).collect();
        for encoding in ALL {
            let encoded = encode(&body, encoding);
            let decoded = try_decompress(&encoded, encoding, body.len(), 8 << 20).expect("at the limit");
            assert!(decoded == body, "{encoding:?}");
            let refused = try_decompress(&encoded, encoding, body.len() - 1, 8 << 20).expect_err("over the limit");
            assert_eq!(refused.reason(), RefusalReason::BodyTooLarge, "{encoding:?}");
            let refused = try_decompress(&encoded, encoding, body.len(), body.len() / 2).expect_err("over the limit");
            assert_eq!(refused.reason(), RefusalReason::Overloaded, "{encoding:?}");
            let refused =
                try_decompress(&encoded[..encoded.len() - 9], encoding, body.len(), 8 << 20).expect_err("cut off");
            assert_eq!(refused.reason(), RefusalReason::InvalidBody, "{encoding:?}");
        }
    }

    #[test]
    fn gzip_members_in_a_row_and_bare_deflate_are_read() {
        let twice = [encode(b"one ", Encoding::Gzip), encode(b"two", Encoding::Gzip)].concat();
        assert_eq!(try_decompress(&twice, Encoding::Gzip, 100, 1 << 20).expect("two members"), b"one two");
        let mut bare = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        bare.write_all(b"bare").expect("memory");
        let bare = bare.finish().expect("memory");
        assert_eq!(try_decompress(&bare, Encoding::Deflate, 100, 1 << 20).expect("no zlib header"), b"bare");
    }

    #[test]
    fn a_large_body_is_decompressed_when_it_is_its_turn() {
        let one_blocking_thread =
            tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().expect("a runtime");
        one_blocking_thread.block_on(async {
            let (memory, body) = (BodyMemory::new(1 << 20), encode(b"a", Encoding::Gzip).repeat(300));
            assert!(body.len() > INLINE_BYTES);
            let of_others = turn::take_all(&DECOMPRESSING).await;
            let reservation = memory.reservation(Quota::unlimited());
            let mut decoded = std::pin::pin!(decode(body.into(), Encoding::Gzip, 1_000, reservation));
            assert!(decoded.as_mut().now_or_never().is_none());
            tokio::task::spawn_blocking(|| ()).await.expect("the thread has done all work that came before");
            assert_eq!(memory.in_flight(), 0, "decompressed before its turn");
            drop(of_others);
            assert_eq!(decoded.await.expect("a body").bytes, [b'a'; 300][..]);
        });
    }

    #[tokio::test]
    async fn a_large_body_is_decompressed_while_others_are_parsed() {
        let (memory, body) = (BodyMemory::new(1 << 20), encode(b"a", Encoding::Gzip).repeat(300));
        assert!(body.len() > INLINE_BYTES);
        let _of_others = turn::take_all(&turn::PARSING).await;
        let decoded = decode(body.into(), Encoding::Gzip, 1_000, memory.reservation(Quota::unlimited()));
        let decoded = tokio::time::timeout(Duration::from_secs(60), decoded).await.expect("it does not wait for them");
        assert_eq!(decoded.expect("a body").bytes, [b'a'; 300][..]);
    }

    #[test]
    fn snappy_that_claims_more_than_it_has_is_refused_before_memory_is_taken() {
        let block = encode(&[7; 1_000], Encoding::Snappy);
        let claim = |length: u32| [&varint(length)[..], &block[2..]].concat();
        assert_eq!(try_decompress(&claim(1_000), Encoding::Snappy, 1_000, 4_000).expect("the truth"), [7; 1_000]);
        for (length, max, reason) in [
            (1_001, 1_001, RefusalReason::InvalidBody),
            (999, 1_001, RefusalReason::InvalidBody),
            (1_000_000, 2_000_000, RefusalReason::InvalidBody),
            (u32::MAX, 2_000_000, RefusalReason::BodyTooLarge),
        ] {
            let refused = try_decompress(&claim(length), Encoding::Snappy, max, 4_000).expect_err("not the truth");
            assert_eq!(refused.reason(), reason, "{length}");
        }
        assert!(try_decompress(b"", Encoding::Snappy, 100, 4_000).is_err());
    }

    fn varint(mut number: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    #[test]
    fn only_remote_write_is_snappy() {
        let encoding = |name: Option<&'static str>, format| {
            let header = |name| (header::CONTENT_ENCODING, axum::http::HeaderValue::from_static(name));
            Encoding::of(&name.map(header).into_iter().collect(), format)
        };
        for name in [None, Some("snappy"), Some("Snappy")] {
            assert_eq!(encoding(name, Format::RemoteWrite).expect("an encoding"), Some(Encoding::Snappy));
        }
        assert_eq!(encoding(Some("zstd"), Format::RemoteWrite).expect("an encoding"), Some(Encoding::Zstd));
        assert_eq!(encoding(None, Format::Otlp).expect("an encoding"), None);
        assert!(encoding(Some("snappy"), Format::Otlp).is_err());
    }
}
