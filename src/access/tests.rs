//! Who is let in.

use super::*;
use crate::config::KeySecret;

const NOW_MS: i64 = 1_776_693_610_000;

fn tokens(auth: &str) -> Tokens {
    Tokens::new(&toml::from_str(auth).expect("a section"), DeviceIdCase::Preserve)
}

fn entry(name: &str, token: &str, more: &str) -> String {
    let hash = TokenHash::of(token);
    format!("[[tokens]]\nname = \"{name}\"\nhash = \"{hash}\"\nscopes = [\"ingest\", \"query\"]\n{more}\n")
}

#[test]
fn without_tokens_everybody_may_do_everything_whatever_they_show() {
    let open = tokens("");
    for shown in [None, Some("anything")] {
        let grant = open.grant(shown, NOW_MS).expect("let in");
        assert!([Scope::Ingest, Scope::Query, Scope::Admin].iter().all(|scope| grant.allows(*scope)));
        assert!(grant.reach.is_all() && grant.name.is_none());
    }
}

#[test]
fn with_tokens_only_their_owners_are_let_in() {
    let closed = tokens(&entry("ann", "secret-1", ""));
    let grant = closed.grant(Some("secret-1"), NOW_MS).expect("known");
    assert_eq!(grant.name.as_deref(), Some("ann"));
    assert!(grant.allows(Scope::Ingest) && grant.allows(Scope::Query) && !grant.allows(Scope::Admin));
    assert_eq!(closed.grant(None, NOW_MS), Err(Stranger::NoToken));
    let long = "secret-1".repeat(1_000);
    for bad in ["", "secret-", "secret-11", "SECRET-1", "ann", &long] {
        assert_eq!(closed.grant(Some(bad), NOW_MS), Err(Stranger::UnknownToken), "{bad}");
    }
}

#[test]
fn a_bad_token_is_refused_where_none_would_do() {
    let both = tokens(&format!("allow_anonymous = true\n{}", entry("ann", "secret-1", "device_prefix = \"ann/\"")));
    assert!(both.grant(None, NOW_MS).expect("anonymous").reach.is_all());
    assert_eq!(both.grant(Some("secret-2"), NOW_MS), Err(Stranger::UnknownToken));
    assert_eq!(both.grant(Some("secret-1"), NOW_MS).expect("known").reach.kept("x").expect("in reach"), "ann/x");
}

#[test]
fn a_token_is_good_until_it_expires_and_another_of_the_same_name_goes_on() {
    let expires = "expires = \"2026-04-20T14:00:10Z\"";
    let two = tokens(&(entry("ann", "old", expires) + &entry("ann", "new", "")));
    assert!(two.grant(Some("old"), NOW_MS - 1).is_ok());
    assert_eq!(two.grant(Some("old"), NOW_MS), Err(Stranger::ExpiredToken));
    assert_eq!(two.grant(Some("new"), NOW_MS).expect("known").name.as_deref(), Some("ann"));
    let only = tokens(&entry("ann", "old", expires));
    assert_eq!(only.grant(None, NOW_MS), Err(Stranger::NoToken), "what has expired does not open the door");
}

#[test]
fn patterns_and_prefixes_are_in_the_case_in_which_ids_are_kept() {
    let auth = entry("ann", "t", "devices = [\"LIGHT-*\"]\ndevice_prefix = \"Acme/\"");
    let lower = Tokens::new(&toml::from_str(&auth).expect("a section"), DeviceIdCase::Lower);
    let reach = lower.grant(Some("t"), NOW_MS).expect("known").reach.clone();
    assert_eq!(reach.kept("light-1").expect("in reach"), "acme/light-1");
}

#[test]
fn a_gate_shows_the_tokens_of_now() {
    let gate = Gate::new(tokens(&entry("ann", "old", "")));
    let before = gate.tokens();
    gate.replace(tokens(&entry("ann", "new", "")));
    assert!(before.grant(Some("old"), NOW_MS).is_ok(), "a request goes on with what it began with");
    assert!(gate.tokens().grant(Some("new"), NOW_MS).is_ok() && gate.tokens().grant(Some("old"), NOW_MS).is_err());
}

/// A secret, and the table of a key with it.
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
fn a_signed_datagram_is_that_of_its_key_until_the_key_expires() {
    let (one_secret, one) = key("one", "devices = [\"LIGHT-*\"]\nexpires = \"2026-04-20T14:00:10Z\"");
    let (two_secret, two) = key("two", "device_prefix = \"acme/\"");
    let access = tokens(&(one + &two));
    let keys = access.keys();
    let by_one = signed("one", &one_secret, "x");
    let verified = keys.verify(&by_one, NOW_MS - 1).expect("signed");
    assert_eq!(verified.content, b"x");
    assert!(verified.reach.kept("LIGHT-1").is_ok() && verified.reach.kept("PUMP-1").is_err());
    assert_eq!(keys.verify(&by_one, NOW_MS), Err(Unverified::ExpiredKey));
    let by_two = signed("two", &two_secret, "x");
    assert_eq!(keys.verify(&by_two, NOW_MS).expect("signed").reach.kept("x").expect("in reach"), "acme/x");
    for (datagram, why) in [
        (b"x".to_vec(), Unverified::Unsigned),
        (signed("two", &one_secret, "x"), Unverified::BadSignature),
        (signed("one", &two_secret, "x"), Unverified::BadSignature),
        ([&by_two[..], b"\n"].concat(), Unverified::BadSignature),
        (signed("Two", &two_secret, "x"), Unverified::UnknownKey),
        (b"#tg1".to_vec(), Unverified::BadSignature),
    ] {
        assert_eq!(keys.verify(&datagram, NOW_MS - 1), Err(why), "{}", datagram.escape_ascii());
    }
    assert!(!format!("{access:?}").contains("hunter2"), "no secret is shown");
}

#[test]
fn what_opens_the_door_to_unsigned_datagrams_does_not_open_it_to_bad_signatures() {
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
        assert_eq!(access.keys().verify(&unsigned, NOW_MS).is_ok(), takes_unsigned, "{auth}");
        let verified = access.keys().verify(&unknown, NOW_MS);
        let expected = if takes_unknown { Ok(&b"x"[..]) } else { Err(Unverified::UnknownKey) };
        assert_eq!(verified.map(|verified| verified.content), expected, "{auth}");
    }
}
