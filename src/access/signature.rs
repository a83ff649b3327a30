//! The signature line at the start of a datagram.
//!
//! The line is `#tg1 KEY-ID MAC\n`. MAC is the HMAC-SHA-256 (RFC 2104) of all bytes after the line, in
//! base64url without padding (RFC 4648, section 5). The key of the HMAC is the text of the secret, not its
//! decoded bytes. Parsers of line protocol skip the line as a comment.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::config::{KEY_ID_MAX_BYTES, KeySecret, is_key_id};

const START: &[u8] = b"#tg1";
const MAC_BYTES: usize = 32;
/// The length of a MAC in base64url, without padding.
const MAC_CHARS: usize = 43;
const LINE_MAX_BYTES: usize = START.len() + 1 + KEY_ID_MAX_BYTES + 1 + MAC_CHARS + 1;

/// The signature line of a datagram, and the content after it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Signature<'d> {
    pub(super) key_id: &'d str,
    pub(super) mac: [u8; MAC_BYTES],
    /// The signed bytes: all after the line.
    pub(super) content: &'d [u8],
}

/// The state of an HMAC that has read the secret.
#[derive(Clone)]
pub(super) struct Signer(Hmac<Sha256>);

/// Whether the datagram begins with `#tg1`, as a signature line does.
pub(super) fn is_claimed(datagram: &[u8]) -> bool {
    datagram.starts_with(START)
}

/// Parses the signature line; `None` if it is malformed.
pub(super) fn read(datagram: &[u8]) -> Option<Signature<'_>> {
    let end = memchr::memchr(b'\n', &datagram[..datagram.len().min(LINE_MAX_BYTES)])?;
    let words = datagram[..end].strip_prefix(START)?.strip_prefix(b" ")?;
    let (key_id, mac) = words.split_at(memchr::memchr(b' ', words)?);
    let key_id = std::str::from_utf8(key_id).ok().filter(|id| is_key_id(id.as_bytes()))?;
    let mac = URL_SAFE_NO_PAD.decode(&mac[1..]).ok()?.try_into().ok()?;
    Some(Signature { key_id, mac, content: &datagram[end + 1..] })
}

/// The datagram without its first line.
pub(super) fn skip_line(datagram: &[u8]) -> &[u8] {
    memchr::memchr(b'\n', datagram).map_or(&[], |end| &datagram[end + 1..])
}

/// Makes the signature line to put before `content`.
#[must_use]
pub fn sign(key_id: &str, secret: &KeySecret, content: &[u8]) -> String {
    let mac = Signer::new(secret).0.chain_update(content).finalize().into_bytes();
    format!("#tg1 {key_id} {}\n", URL_SAFE_NO_PAD.encode(mac))
}

impl Signer {
    pub(super) fn new(secret: &KeySecret) -> Self {
        Self(Hmac::new_from_slice(secret.expose().as_bytes()).expect("a key of HMAC has any length"))
    }

    /// Whether the signature was made with this secret, compared in constant time.
    pub(super) fn verifies(&self, signature: &Signature<'_>) -> bool {
        self.0.clone().chain_update(signature.content).verify_slice(&signature.mac).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of test case 2 of RFC 4231 is too short for a secret. So this key takes its place, and the MAC
    /// comes from `openssl dgst -sha256 -mac HMAC`.
    const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789a";
    const SIGNED: &[u8] = b"#tg1 gw-1 kpcgioOYis4VClUdyVG1Qa-Qb_CcIMiYsCY4YExfbf0\nwhat do ya want for nothing?";

    fn secret() -> KeySecret {
        KeySecret::new(SECRET).unwrap()
    }

    #[test]
    fn the_line_is_as_other_implementations_make_it() {
        let content = b"what do ya want for nothing?";
        assert_eq!([sign("gw-1", &secret(), content).as_bytes(), content].concat(), SIGNED);
        let signature = read(SIGNED).unwrap();
        assert_eq!((signature.key_id, signature.content), ("gw-1", &content[..]));
        assert!(Signer::new(&secret()).verifies(&signature));
    }

    #[test]
    fn nothing_but_the_very_line_is_a_signature() {
        let mac = "A".repeat(43);
        let id = "x".repeat(32);
        for good in [format!("#tg1 a {mac}\n"), format!("#tg1 {id} {mac}\n\n"), format!("#tg1 .-_ {mac}\nx")] {
            assert!(read(good.as_bytes()).is_some(), "{good:?}");
        }
        for bad in [
            "#tg1".to_owned(),
            "#tg1\n".to_owned(),
            "#tg1 \n".to_owned(),
            "#tg1 a\n".to_owned(),
            "#tg1 a \n".to_owned(),
            format!("#tg1 a {mac}"),
            format!("#tg1 a {mac}\r\n"),
            format!("#tg1 a {mac} \n"),
            format!("#tg1 a {mac} x\n"),
            format!("#tg1 a  {mac}\n"),
            format!("#tg1  a {mac}\n"),
            format!("#tg1\ta {mac}\n"),
            format!(" #tg1 a {mac}\n"),
            format!("#TG1 a {mac}\n"),
            format!("#tg12 a {mac}\n"),
            format!("#tg1 {id}x {mac}\n"),
            format!("#tg1 a/b {mac}\n"),
            format!("#tg1 \u{e4} {mac}\n"),
            format!("#tg1 a {mac}=\n"),
            format!("#tg1 a {mac}A\n"),
            format!("#tg1 a {}\n", &mac[1..]),
            format!("#tg1 a {}B\n", &mac[1..]),
            format!("#tg1 a +{}\n", &mac[1..]),
            format!("#tg1 a {}\n", "0".repeat(64)),
        ] {
            assert_eq!(read(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
