//! Invariants fuzzed on signed and unsigned datagrams.

use super::{DeviceScope, Keys, SignatureError, sign, signature};
use crate::config::{Auth, Config, Key, KeySecret};

/// The secret of the key `gw-1` in the corpus.
const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789a";

/// Fuzzes the verification of a datagram, signed or not.
pub fn signed_datagram(datagram: &[u8]) {
    let secret = KeySecret::new(SECRET).expect("a secret");
    let key = Key {
        id: "gw-1".to_owned(),
        secret: secret.clone(),
        devices: None,
        device_prefix: None,
        expires: None,
        readings_per_second: None,
    };
    let auth = Auth { keys: vec![key], ..Auth::default() };
    let closed = Keys::new(&Config { auth, ..Config::default() });
    match closed.verify(datagram, 0) {
        Ok(verified) => {
            let again = [sign("gw-1", &secret, verified.content).as_bytes(), verified.content].concat();
            assert_eq!(again, datagram, "a content has one signature");
        }
        Err(SignatureError::Unsigned) => assert!(!signature::is_claimed(datagram)),
        Err(SignatureError::UnknownKey | SignatureError::BadSignature) => assert!(signature::is_claimed(datagram)),
        Err(SignatureError::ExpiredKey) => panic!("the key does not expire"),
    }
    let resigned = [sign("gw-1", &secret, datagram).as_bytes(), datagram].concat();
    assert_eq!(closed.verify(&resigned, 0).expect("it is signed").content, datagram);
    let open = Keys::new(&Config::default());
    let read = open.verify(datagram, 0).expect("unsigned datagrams are accepted");
    assert!(datagram.ends_with(read.content) && read.scope == DeviceScope::all());
}
