//! The hash of a token. The configuration contains the hash and not the token.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};
use sha2::{Digest, Sha256};

const BYTES: usize = 32;

/// The SHA-256 of a token, written `sha256:` and 64 hexadecimal digits.
///
/// Tokens are random, so a plain hash is enough. An attacker cannot try 2^256 tokens, so neither salt nor a
/// slow hash would add safety, and a slow hash would cost time in every request. The time of a lookup by
/// hash does not help an attacker either, because an attacker cannot choose the hash of a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; BYTES]);

/// A text is not the hash of a token.
///
/// The error does not quote the text, which may be the token itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected \"sha256:\" and 64 hexadecimal digits, as `tidegauge token new` and `tidegauge token hash` print it")]
pub struct TokenHashError;

impl TokenHash {
    /// The hash of a token.
    #[must_use]
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }
}

impl FromStr for TokenHash {
    type Err = TokenHashError;

    fn from_str(text: &str) -> Result<Self, TokenHashError> {
        let digits = text.strip_prefix("sha256:").ok_or(TokenHashError)?.as_bytes();
        if digits.len() != 2 * BYTES {
            return Err(TokenHashError);
        }
        let value = |digit: u8| char::from(digit).to_digit(16).ok_or(TokenHashError);
        let mut bytes = [0; BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (value(pair[0])? << 4 | value(pair[1])?) as u8;
        }
        let hash = Self(bytes);
        if hash == Self::of("") { Err(TokenHashError) } else { Ok(hash) } // the empty string is not a token
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    /// Reads a text. The error about another value does not quote it: a number may be the token itself.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer).map_err(|_| TokenHashError);
        text.and_then(|text| text.parse::<Self>()).map_err(de::Error::custom)
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Shows the first two bytes of the hash.
///
/// They are enough to identify it, but too few to test guesses of a weak token.
impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{:02x}{:02x}...", self.0[0], self.0[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-2, appendix B.1.
    const OF_ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_hash_is_sha_256_and_displayed_as_it_is_parsed() {
        assert_eq!(TokenHash::of("abc").to_string(), OF_ABC);
        assert_eq!(OF_ABC.parse(), Ok(TokenHash::of("abc")));
        assert_eq!(OF_ABC.to_uppercase().replace("SHA256", "sha256").parse(), Ok(TokenHash::of("abc")));
        assert_ne!(OF_ABC.parse(), Ok(TokenHash::of("abd")));
    }

    #[test]
    fn an_incomplete_hash_is_refused() {
        let non_ascii = format!("sha256:{}ä", "0".repeat(62));
        for bad in ["", "sha256:", &OF_ABC[..70], &OF_ABC[7..], &OF_ABC.replace('a', "g"), "tg_secret", &non_ascii] {
            assert_eq!(bad.parse::<TokenHash>(), Err(TokenHashError), "{bad}");
        }
    }

    #[test]
    fn the_hash_of_the_empty_string_is_refused() {
        assert_eq!(TokenHash::of("").to_string().parse::<TokenHash>(), Err(TokenHashError));
    }

    #[test]
    fn an_error_does_not_repeat_a_text_that_may_be_the_token() {
        let error = toml::from_str::<toml::Table>("hash = \"tg_hunter2\"").unwrap()["hash"].clone();
        let error = TokenHash::deserialize(error).unwrap_err().to_string();
        assert!(error.contains("sha256:") && !error.contains("hunter2"), "{error}");
        assert_eq!(format!("{:?}", TokenHash::of("abc")), "sha256:ba78...");
    }
}
