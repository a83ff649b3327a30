//! The compression of answers: gzip or zstd, as `Accept-Encoding` asks for.
//!
//! The levels are fast ones. An encoder takes 0.4 MiB (gzip) or 1 MiB (zstd) for an answer of any length.

use std::io::{self, Write};

use axum::body::Bytes;
use axum::http::header::ACCEPT_ENCODING;
use axum::http::{HeaderMap, HeaderValue};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::weights;
use super::workbook::Workbook;

/// The compression level of gzip and of workbooks.
///
/// Level 1 of zlib-rs has the same codes for all data, and makes a third more bytes.
pub(super) const DEFLATE_LEVEL: Compression = Compression::new(2);

/// The compression level of zstd.
const ZSTD_LEVEL: i32 = 1;

/// The most bytes of an answer that is encoded without a blocking thread.
const INLINE_MAX: usize = 32 << 10;

/// The encoding of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Encoding {
    Identity,
    Gzip,
    Zstd,
    /// The archive of a workbook. It has no `Content-Encoding`.
    Workbook,
}

impl Encoding {
    /// The most memory of an encoder, in bytes.
    pub(in crate::http) const MAX_BYTES: usize = 3 << 20;

    /// Returns the encoding that a client prefers.
    ///
    /// At the same weight, zstd precedes gzip.
    pub(in crate::http) fn choose(headers: &HeaderMap) -> Self {
        let lists = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let choices: Vec<(&str, u16)> = lists.flat_map(weights).collect();
        let weight = |names: &[&str]| {
            let named = choices.iter().find(|(name, _)| names.iter().any(|known| name.eq_ignore_ascii_case(known)));
            named.or_else(|| choices.iter().find(|(name, _)| *name == "*")).map(|(_, weight)| *weight)
        };
        let identity = (weight(&["identity"]).unwrap_or(0), Self::Identity);
        let gzip = (weight(&["gzip", "x-gzip"]).unwrap_or(0), Self::Gzip);
        let zstd = (weight(&["zstd"]).unwrap_or(0), Self::Zstd);
        let (weight, best) = [identity, gzip, zstd].into_iter().max_by_key(|(weight, _)| *weight).unwrap_or(identity);
        if weight == 0 { Self::Identity } else { best } // at the same weight, the last one
    }

    /// Returns the value of `Content-Encoding`; `None`: the answer has no such header.
    pub(in crate::http) const fn header(self) -> Option<HeaderValue> {
        match self {
            Self::Identity | Self::Workbook => None,
            Self::Gzip => Some(HeaderValue::from_static("gzip")),
            Self::Zstd => Some(HeaderValue::from_static("zstd")),
        }
    }
}

/// Compresses an answer piece by piece.
pub(in crate::http) enum Encoder {
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
    Workbook(Workbook),
}

impl Encoder {
    /// Makes an encoder; `None`: the answer is not compressed.
    pub(in crate::http) fn new(encoding: Encoding) -> io::Result<Option<Self>> {
        Ok(match encoding {
            Encoding::Identity => None,
            Encoding::Gzip => Some(Self::Gzip(GzEncoder::new(Vec::new(), DEFLATE_LEVEL))),
            Encoding::Zstd => Some(Self::Zstd(zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?)),
            Encoding::Workbook => Some(Self::Workbook(Workbook::new())),
        })
    }

    /// Encodes a piece, and returns the bytes that are ready, perhaps none.
    pub(in crate::http) fn encode(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        Ok(match self {
            Self::Gzip(encoder) => {
                encoder.write_all(piece)?;
                std::mem::take(encoder.get_mut())
            }
            Self::Zstd(encoder) => {
                encoder.write_all(piece)?;
                std::mem::take(encoder.get_mut())
            }
            Self::Workbook(workbook) => workbook.encode(piece)?,
        })
    }

    /// Ends the encoding, and returns the last bytes.
    pub(in crate::http) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
            Self::Workbook(workbook) => workbook.finish(),
        }
    }
}

/// Encodes the pieces of a whole answer. A blocking thread encodes a long answer.
pub(in crate::http) async fn encoded(encoding: Encoding, pieces: Vec<Bytes>) -> io::Result<Vec<Bytes>> {
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    let encode = move || {
        let Some(mut encoder) = Encoder::new(encoding)? else { return Ok(pieces) };
        let mut encoded = Vec::with_capacity(pieces.len() + 1);
        for piece in &pieces {
            encoded.push(encoder.encode(piece)?.into());
        }
        encoded.push(encoder.finish()?.into());
        Ok(encoded)
    };
    if bytes <= INLINE_MAX {
        return encode();
    }
    tokio::task::spawn_blocking(encode).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_client_gets_the_encoding_that_it_prefers() {
        for (accepted, expected) in [
            ("", Encoding::Identity),
            ("identity", Encoding::Identity),
            ("gzip", Encoding::Gzip),
            ("x-gzip", Encoding::Gzip),
            ("gzip, deflate, br, zstd", Encoding::Zstd),
            ("gzip;q=1.0, zstd;q=0.9", Encoding::Gzip),
            ("zstd;q=0, *", Encoding::Gzip),
            ("*", Encoding::Zstd),
            ("*;q=0", Encoding::Identity),
            ("gzip;q=0.5, identity", Encoding::Identity),
            ("br", Encoding::Identity),
            ("GZIP", Encoding::Gzip),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(accepted))]);
            assert_eq!(Encoding::choose(&headers), expected, "{accepted:?}");
        }
        assert_eq!(Encoding::choose(&HeaderMap::new()), Encoding::Identity);
    }

    #[test]
    fn pieces_are_one_text_in_each_encoding() {
        let pieces: Vec<Vec<u8>> = (0..200_u32).map(|at| at.to_string().repeat(1_000).into_bytes()).collect();
        assert!(Encoder::new(Encoding::Identity).unwrap().is_none());
        for encoding in [Encoding::Gzip, Encoding::Zstd] {
            let mut encoder = Encoder::new(encoding).unwrap().unwrap();
            let mut encoded = Vec::new();
            for piece in &pieces {
                encoded.extend(encoder.encode(piece).unwrap());
            }
            encoded.extend(encoder.finish().unwrap());
            let mut text = Vec::new();
            if encoding == Encoding::Gzip {
                flate2::read::GzDecoder::new(&encoded[..]).read_to_end(&mut text).unwrap();
            } else {
                text = zstd::decode_all(&encoded[..]).unwrap();
            }
            assert!(text == pieces.concat(), "{encoding:?}");
        }
    }
}
