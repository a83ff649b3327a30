//! The grants of tokens, certificates and keys.

use super::*;
use crate::config::KeySecret;

const NOW_MS: i64 = 1_776_693_610_000;

fn tokens(auth: &str) -> Tokens {
    Tokens::new(&Config { auth: toml::from_str(auth).expect("a section"), ..Config::default() })
}

fn token(token: Option<&str>) -> Credentials<'_> {
    Credentials { token, certificate: None }
}

fn entry(name: &str, token: &str, more: &str) -> String {
    let hash = TokenHash::of(token);
    format!("[[tokens]]\nname = \"{name}\"\nhash = \"{hash}\"\nscopes = [\"ingest\", \"query\"]\n{more}\n")
}

#[test]
fn without_configured_tokens_every_request_has_all_rights() {
    let open = tokens("");
    for shown in [None, Some("anything")] {
        let grant = open.grant(token(shown), None, NOW_MS).expect("let in");
        assert!([Scope::Ingest, Scope::Query, Scope::Metadata, Scope::Admin].iter().all(|scope| grant.allows(*scope)));
        assert!(grant.device_scope.is_all() && grant.name.is_none());
    }
}

#[test]
fn with_configured_tokens_only_these_are_accepted() {
    let closed = tokens(&entry("ann", "secret-1", ""));
    let grant = closed.grant(token(Some("secret-1")), None, NOW_MS).expect("known");
    assert_eq!(grant.name.as_deref(), Some("ann"));
    assert!(grant.allows(Scope::Ingest) && grant.allows(Scope::Query) && !grant.allows(Scope::Admin));
    assert_eq!(closed.grant(token(None), None, NOW_MS).err(), Some(AuthError::NoToken));
    let long = "secret-1".repeat(1_000);
    for bad in ["", "secret-", "secret-11", "SECRET-1", "ann", &long] {
        assert_eq!(closed.grant(token(Some(bad)), None, NOW_MS).err(), Some(AuthError::UnknownToken), "{bad}");
    }
}

#[test]
fn an_invalid_token_is_refused_though_none_is_needed() {
    let both = tokens(&format!("allow_anonymous = true\n{}", entry("ann", "secret-1", "device_prefix = \"ann/\"")));
    assert!(both.grant(token(None), None, NOW_MS).expect("anonymous").device_scope.is_all());
    assert_eq!(both.grant(token(Some("secret-2")), None, NOW_MS).err(), Some(AuthError::UnknownToken));
    assert_eq!(
        both.grant(token(Some("secret-1")), None, NOW_MS)
            .expect("known")
            .device_scope
            .to_stored_id("x")
            .expect("in reach"),
        "ann/x"
    );
}

#[test]
fn a_token_expires_alone_among_those_of_its_name() {
    let expires = "expires = \"2026-04-20T14:00:10Z\"";
    let two = tokens(&(entry("ann", "old", expires) + &entry("ann", "new", "")));
    assert!(two.grant(token(Some("old")), None, NOW_MS - 1).is_ok());
    assert_eq!(two.grant(token(Some("old")), None, NOW_MS).err(), Some(AuthError::ExpiredToken));
    assert_eq!(two.grant(token(Some("new")), None, NOW_MS).expect("known").name.as_deref(), Some("ann"));
    let only = tokens(&entry("ann", "old", expires));
    assert_eq!(
        only.grant(token(None), None, NOW_MS).err(),
        Some(AuthError::NoToken),
        "what has expired does not open the door"
    );
}

#[test]
fn patterns_and_prefixes_have_the_case_of_stored_ids() {
    let auth = entry("ann", "t", "devices = [\"LIGHT-*\"]\ndevice_prefix = \"Acme/\"");
    let mut config = Config { auth: toml::from_str(&auth).expect("a section"), ..Config::default() };
    config.ingest.device_id_case = DeviceIdCase::Lower;
    let lower = Tokens::new(&config);
    let scope = lower.grant(token(Some("t")), None, NOW_MS).expect("known").device_scope.clone();
    assert_eq!(scope.to_stored_id("light-1").expect("in reach"), "acme/light-1");
}

#[test]
fn a_gate_returns_the_current_tokens() {
    let gate = Gate::new(tokens(&entry("ann", "old", "")));
    let before = gate.tokens();
    gate.replace(tokens(&entry("ann", "new", "")));
    assert!(before.grant(token(Some("old")), None, NOW_MS).is_ok(), "a request goes on with what it began with");
    assert!(
        gate.tokens().grant(token(Some("new")), None, NOW_MS).is_ok()
            && gate.tokens().grant(token(Some("old")), None, NOW_MS).is_err()
    );
}

/// The grant of a request with a certificate, and perhaps a token.
///
/// The certificate has these names, and is valid for another second.
fn by_certificate(auth: &str, names: &[&str], token: Option<&str>, to: Scope) -> Result<Arc<Grant>, AuthError> {
    let certificate = Certificate::new(names.iter().copied(), NOW_MS + 1_000);
    tokens(auth).grant(Credentials { token, certificate: Some(&certificate) }, Some(to), NOW_MS)
}

const BY_DEVICE: &str = "client_certificate = \"device\"\n";

#[test]
fn a_certificate_allows_writing_its_devices_only() {
    let grant = by_certificate(BY_DEVICE, &["pump-1", "urn:dev:mac:0024befffe804ff1"], None, Scope::Ingest);
    let grant = grant.expect("let in");
    assert_eq!(grant.scopes, [Scope::Ingest]);
    for (device, is_its) in
        [("pump-1", true), ("urn:dev:mac:0024befffe804ff1", true), ("pump-2", false), ("pump", false)]
    {
        assert_eq!(grant.device_scope.to_stored_id(device).is_ok(), is_its, "{device}");
    }
    for scope in [Scope::Query, Scope::Admin] {
        assert_eq!(by_certificate(BY_DEVICE, &["pump-1"], None, scope).err(), Some(AuthError::NoToken));
    }
    assert_eq!(
        tokens(BY_DEVICE).grant(token(None), Some(Scope::Ingest), NOW_MS).err(),
        Some(AuthError::NoTokenNorCertificate)
    );
    assert_eq!(tokens(BY_DEVICE).grant(token(Some("x")), None, NOW_MS).err(), Some(AuthError::UnknownToken));
}

#[test]
fn names_that_are_not_device_ids_grant_nothing() {
    let long = "x".repeat(129);
    let bad = ["", "..", "Gateway ", "LIGHT-1\u{202E}", &long];
    assert_eq!(by_certificate(BY_DEVICE, &bad, None, Scope::Ingest).err(), Some(AuthError::NamelessCertificate));
    let one = by_certificate(BY_DEVICE, &[&bad[..], &["pump-1"]].concat(), None, Scope::Ingest).expect("let in");
    assert!(one.device_scope.to_stored_id("pump-1").is_ok() && one.device_scope.to_stored_id("LIGHT-1").is_err());
}

#[test]
fn a_star_in_a_certificate_is_no_wildcard() {
    let scope = by_certificate(BY_DEVICE, &["*", "LIGHT-*"], None, Scope::Ingest).expect("let in").device_scope.clone();
    for (device, is_covered) in [("*", true), ("LIGHT-*", true), ("LIGHT-1", false), ("x", false), ("LIGHT-", false)] {
        assert_eq!(scope.to_stored_id(device).is_ok(), is_covered, "{device}");
    }
}

#[test]
fn a_certificate_is_valid_until_its_expiry() {
    let closed = tokens(BY_DEVICE);
    let certificate = Certificate::new(["pump-1"], NOW_MS);
    let shown = Credentials { token: None, certificate: Some(&certificate) };
    assert!(closed.grant(shown, Some(Scope::Ingest), NOW_MS).is_ok());
    assert_eq!(closed.grant(shown, Some(Scope::Ingest), NOW_MS + 1).err(), Some(AuthError::ExpiredCertificate));
    let beside = Credentials { token: Some("t"), ..shown };
    for auth in [BY_DEVICE.to_owned() + &entry("ann", "t", ""), entry("ann", "t", ""), String::new()] {
        for to in [Some(Scope::Query), None] {
            assert!(tokens(&auth).grant(beside, to, NOW_MS).is_ok(), "{auth}");
            let late = tokens(&auth).grant(beside, to, NOW_MS + 1);
            assert_eq!(late.err(), Some(AuthError::ExpiredCertificate), "{auth}");
        }
    }
}

#[test]
fn token_and_certificate_must_both_allow_a_device() {
    let auth = BY_DEVICE.to_owned() + &entry("ann", "t", "devices = [\"LIGHT-*\"]\ndevice_prefix = \"acme/\"");
    let names = ["LIGHT-1", "pump-1"];
    let both = by_certificate(&auth, &names, Some("t"), Scope::Ingest).expect("let in");
    assert_eq!(both.device_scope.to_stored_id("LIGHT-1").expect("both allow it"), "acme/LIGHT-1");
    assert!(both.device_scope.to_stored_id("pump-1").is_err() && both.device_scope.to_stored_id("LIGHT-2").is_err());
    let reading = by_certificate(&auth, &names, Some("t"), Scope::Query).expect("let in");
    assert!(reading.device_scope.to_stored_id("LIGHT-2").is_ok(), "a certificate says nothing of reading");
    assert_eq!(by_certificate(&auth, &names, Some("other"), Scope::Ingest).err(), Some(AuthError::UnknownToken));
}

#[test]
fn certificates_are_ignored_unless_configured() {
    let auth = entry("ann", "t", "");
    assert_eq!(by_certificate(&auth, &["pump-1"], None, Scope::Ingest).err(), Some(AuthError::NoToken));
    assert!(by_certificate(&auth, &["pump-1"], Some("t"), Scope::Ingest).expect("let in").device_scope.is_all());
    assert!(by_certificate("", &["pump-1"], None, Scope::Admin).is_ok());
}

#[test]
fn names_in_certificates_have_the_case_of_stored_ids() {
    let mut config = Config { auth: toml::from_str(BY_DEVICE).expect("a section"), ..Config::default() };
    config.ingest.device_id_case = DeviceIdCase::Lower;
    let lower = Tokens::new(&config);
    let certificate = Certificate::new(["Pump-1"], NOW_MS);
    let shown = Credentials { token: None, certificate: Some(&certificate) };
    assert!(
        lower.grant(shown, Some(Scope::Ingest), NOW_MS).expect("let in").device_scope.to_stored_id("pump-1").is_ok()
    );
}

/// A secret, and the TOML of a table `[[keys]]` that has it.
///
/// `more` has further lines of the TOML.
fn key(id: &str, more: &str) -> (KeySecret, String) {
    let text = format!("{:_<43}", format!("hunter2-{id}"));
    (
        KeySecret::new(text.as_str()).expect("a secret"),
        format!("[[keys]]\nid = \"{id}\"\nsecret = \"{text}\"\n{more}\n"),
    )
}

fn signed(id: &str, secret: &KeySecret, content: &str) -> Vec<u8> {
    [sign(id, secret, content.as_bytes()).as_bytes(), content.as_bytes()].concat()
}

#[test]
fn a_signed_datagram_has_the_scope_of_its_key_until_expiry() {
    let (one_secret, one) = key("one", "devices = [\"LIGHT-*\"]\nexpires = \"2026-04-20T14:00:10Z\"");
    let (two_secret, two) = key("two", "device_prefix = \"acme/\"");
    let access = tokens(&(one + &two));
    let keys = &access.keys;
    let by_one = signed("one", &one_secret, "x");
    let verified = keys.verify(&by_one, NOW_MS - 1).expect("signed");
    assert_eq!(verified.content, b"x");
    assert!(verified.scope.to_stored_id("LIGHT-1").is_ok() && verified.scope.to_stored_id("PUMP-1").is_err());
    assert_eq!(keys.verify(&by_one, NOW_MS).unwrap_err(), SignatureError::ExpiredKey);
    let by_two = signed("two", &two_secret, "x");
    assert_eq!(keys.verify(&by_two, NOW_MS).expect("signed").scope.to_stored_id("x").expect("in reach"), "acme/x");
    for (datagram, why) in [
        (b"x".to_vec(), SignatureError::Unsigned),
        (signed("two", &one_secret, "x"), SignatureError::BadSignature),
        (signed("one", &two_secret, "x"), SignatureError::BadSignature),
        ([&by_two[..], b"\n"].concat(), SignatureError::BadSignature),
        (signed("Two", &two_secret, "x"), SignatureError::UnknownKey),
        (b"#tg1".to_vec(), SignatureError::BadSignature),
    ] {
        assert_eq!(keys.verify(&datagram, NOW_MS - 1).unwrap_err(), why, "{}", datagram.escape_ascii());
    }
    assert!(!format!("{access:?}").contains("hunter2"), "no secret is shown");
}

#[test]
fn invalid_signatures_are_refused_where_unsigned_is_accepted() {
    let (secret, table) = key("one", "");
    let (unsigned, unknown) = (b"x".to_vec(), signed("two", &secret, "x"));
    for (auth, takes_unsigned, takes_unknown) in [
        (String::new(), true, true),
        (entry("ann", "t", ""), true, false),
        (table.clone(), false, false),
        (format!("allow_anonymous = true\n{table}"), true, false),
        (format!("allow_anonymous = true\n{}", entry("ann", "t", "")), true, false),
    ] {
        let access = tokens(&auth);
        assert_eq!(access.keys.verify(&unsigned, NOW_MS).is_ok(), takes_unsigned, "{auth}");
        let verified = access.keys.verify(&unknown, NOW_MS);
        let expected = if takes_unknown { Ok(&b"x"[..]) } else { Err(SignatureError::UnknownKey) };
        assert_eq!(verified.map(|verified| verified.content), expected, "{auth}");
    }
}
