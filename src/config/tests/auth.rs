//! Authentication: tokens, keys, certificates, and addresses that other machines can reach.

use super::*;

#[test]
fn listening_beyond_loopback_without_authentication_takes_a_decision() {
    for listen in ["0.0.0.0:8080", "192.0.2.1:80", "[::]:8080"] {
        for (section, way_out) in [("http", "tidegauge token new"), ("udp", "tidegauge key new")] {
            let file = format!("[{section}]\nlisten = \"{listen}\"");
            let error = error_of(&file);
            let key_is = format!("FILE:2:10: {section}.listen is ");
            assert!(error.starts_with(&key_is) && error.contains("listen on loopback"), "{error}");
            assert!(error.contains("auth.allow_anonymous = true") && error.contains(way_out), "{error}");
            load(&format!("{file}\n[auth]\nallow_anonymous = true"), &[], &[]).expect("it was decided");
        }
        let http = format!("[http]\nlisten = \"{listen}\"\n[udp]\nlisten = \"off\"\n");
        load(&(http + &token(1, "")), &[], &[]).expect("tokens are asked for");
        let udp = format!("[udp]\nlisten = \"{listen}\"\n");
        let error = error_of(&(udp.clone() + &token(1, "")));
        assert!(error.contains("datagrams need no signature") && error.contains("udp.listen = \"off\""), "{error}");
        load(&(udp + &key(1, "")), &[], &[]).expect("datagrams have to be signed");
        let http = format!("[http]\nlisten = \"{listen}\"\n");
        assert!(error_of(&(http + &key(1, ""))).contains("clients need not authenticate"), "a key is no token");
    }
    for listen in ["127.0.0.1:0", "127.1.2.3:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        load(&format!("[http]\nlisten = \"{listen}\"\n[udp]\nlisten = \"{listen}\""), &[], &[]).expect("loopback");
    }
    load("[udp]\nlisten = \"off\"", &[], &[]).expect("nobody can reach it");
}

#[test]
fn other_tokens_do_not_open_a_server_that_goes_on_listening() {
    let public = "[http]\nlisten = \"0.0.0.0:8080\"\n[udp]\nlisten = \"off\"\n".to_owned();
    let running = load(&(public + &token(1, "")), &[], &[]).expect("valid");
    let other = load(&token(2, ""), &[], &[]).expect("valid");
    assert_eq!(running.reloaded(&other).expect("valid").auth, other.auth);
    let none = load("", &[], &[]).expect("valid by itself");
    assert!(
        running.reloaded(&none).expect_err("it would be open").to_string().contains("clients need not authenticate")
    );
}

#[test]
fn a_reload_opens_nothing_that_was_closed() {
    let tls = |more: &str| format!("{TLS}{more}\n");
    let required = "client_certificates = \"required\"";
    let (required, lists) = (tls(required), tls(&format!("{required}\nclient_crl_file = \"l\"")));
    let by_device = tls("") + "[auth]\nclient_certificate = \"device\"\n";
    for (closed, open, key) in [
        (token(1, ""), String::new(), "auth.tokens"),
        (by_device, tls(""), "auth.tokens"),
        (token(1, "") + &key(1, ""), token(1, ""), "auth.keys"),
        (required.clone(), tls(""), "http.tls.client_ca_file"),
        (required.clone(), tls("").replace("client_ca_file = \"a\"\n", ""), "http.tls.client_ca_file"),
        (lists, required, "http.tls.client_crl_file"),
    ] {
        let [running, emptied] = [&closed, &open].map(|file| load(file, &[], &[]).expect("valid by itself"));
        let error = running.reloaded(&emptied).expect_err("it would be open").to_string();
        assert!(error.starts_with(&format!("{key} would remove protection")), "{error}");
        assert!(error.contains("restart the server"), "{error}");
        assert_eq!(emptied.reloaded(&running).expect("it closes").auth, running.auth);
        let decided = load(&format!("[auth]\nallow_anonymous = true\n{}", open.replace("[auth]\n", "")), &[], &[]);
        let taken = running.reloaded(&decided.expect("valid"));
        assert_eq!(taken.is_ok(), key.starts_with("auth."), "{open}");
    }
}

const TLS: &str = "[http.tls]\ncert_file = \"c\"\nkey_file = \"k\"\nclient_ca_file = \"a\"\n";

#[test]
fn certificates_that_name_devices_close_a_public_server_and_certificates_that_name_nobody_do_not() {
    let public = format!("[udp]\nlisten = \"off\"\n[http]\nlisten = \"0.0.0.0:8080\"\n{TLS}");
    let required = format!("{public}client_certificates = \"required\"\n");
    for open in [&public, &required] {
        assert!(error_of(open).contains("clients need not authenticate"), "{open}");
        let config = load(&format!("{open}[auth]\nclient_certificate = \"device\""), &[], &[]).expect("it asks");
        assert!(!config.auth.lets_anybody_in());
    }
}

#[test]
fn tls_is_set_up_by_the_environment_too() {
    let env = [("TIDEGAUGE_HTTP__TLS__CERT_FILE", "c"), ("TIDEGAUGE_HTTP__TLS__KEY_FILE", "k")];
    assert!(load("", &env, &[]).expect("valid").http.tls.is_on());
}

#[test]
fn other_files_are_taken_over_by_a_running_server_and_tls_itself_takes_a_restart() {
    let [with, without] = [TLS, ""].map(|file| load(file, &[], &[]).expect("valid"));
    let other = load(&TLS.replace("\"c\"", "\"d\""), &[], &[]).expect("valid");
    assert_eq!(with.reloaded(&other).expect("valid"), other);
    assert_eq!(with.reloaded(&without).expect("valid"), with);
    assert_eq!(without.reloaded(&with).expect("valid"), without);
}

/// The table of a token, with more keys.
fn token(number: u8, more: &str) -> String {
    let hash = format!("sha256:{number:064x}");
    format!("[[auth.tokens]]\nname = \"t{number}\"\nhash = \"{hash}\"\nscopes = [\"query\"]\n{more}\n")
}

#[test]
fn tokens_come_from_the_file_or_from_the_environment() {
    let file = token(1, "") + &token(2, "devices = [\"LIGHT-*\"]\nexpires = 2030-01-01T00:00:00Z");
    let tokens = load(&file, &[], &[]).expect("valid").auth.tokens;
    assert_eq!(tokens.iter().map(|token| token.name.as_str()).collect::<Vec<_>>(), ["t1", "t2"]);
    let hash = &tokens[0].hash;
    let variable = format!("[{{ name = \"t1\", hash = \"{hash}\", scopes = [\"query\"] }}]");
    let from_env = load("", &[("TIDEGAUGE_AUTH__TOKENS", &variable)], &[]).expect("valid").auth.tokens;
    assert_eq!(from_env, tokens[..1]);
}

#[test]
fn tokens_that_make_no_sense_are_refused_by_key() {
    let same_twice = token(1, "") + &token(1, "");
    let nested = token(1, "device_prefix = \"acme/\"") + &token(2, "device_prefix = \"acme/eu/\"");
    let lower = "[ingest]\ndevice_id_case = \"lower\"\n".to_owned();
    let nested_lower = lower + &token(1, "device_prefix = \"Acme\"") + &token(2, "device_prefix = \"acme2\"");
    for (file, key) in [
        (token(1, "").replace("t1", ""), "auth.tokens.name"),
        (token(1, "").replace("t1", "a b"), "auth.tokens.name"),
        (token(1, "").replace("[\"query\"]", "[]"), "auth.tokens.scopes"),
        (token(1, "devices = []"), "auth.tokens.devices"),
        (token(1, "device_prefix = \"\""), "auth.tokens.device_prefix"),
        (token(1, "device_prefix = \"a*\""), "auth.tokens.device_prefix"),
        (token(1, &format!("device_prefix = \"{}\"", "x".repeat(65))), "auth.tokens.device_prefix"),
        (same_twice, "auth.tokens.hash"),
        (nested, "auth.tokens.device_prefix"),
        (nested_lower, "auth.tokens.device_prefix"),
    ] {
        let error = error_of(&file);
        assert!(error.starts_with(&format!("{key} is ")), "{file:?} gave {error:?}");
    }
    let same_tenant = token(1, "device_prefix = \"acme/\"") + &token(2, "device_prefix = \"acme/\"");
    load(&same_tenant, &[], &[]).expect("two tokens of one tenant");
}

#[test]
fn a_token_that_was_pasted_as_its_hash_is_not_repeated() {
    for secret in ["\"tg_hunter2\"", "471108"] {
        let file = token(1, "").replace(&format!("\"sha256:{:064x}\"", 1), secret);
        let variable = format!("[{{ name = \"t\", hash = {secret}, scopes = [\"query\"] }}]");
        let from_env = load("", &[("TIDEGAUGE_AUTH__TOKENS", &variable)], &[]).expect_err("an error");
        for error in [error_of(&file), from_env] {
            assert!(error.contains("sha256:") && !error.contains("hunter2") && !error.contains(secret), "{error}");
        }
    }
}

#[test]
fn a_value_of_the_wrong_type_in_a_token_or_key_has_its_place() {
    let tokens = token(1, "") + &token(2, "").replace("[\"query\"]", "\"query\"");
    let keys = key(1, "") + &key(2, "readings_per_second = \"many\"");
    let errors = [tokens, keys].map(|file| error_of(&file));
    let expected = [
        "FILE:9:10: auth.tokens[1].scopes: invalid type: string \"query\", expected a list, as \
         [\"a\", \"b\"] is one of texts",
        "FILE:8:23: auth.keys[1].readings_per_second: invalid type: string \"many\", expected a whole number",
    ];
    assert_eq!(errors, expected);
}

/// The table of a key, with more keys.
fn key(number: u8, more: &str) -> String {
    format!("[[auth.keys]]\nid = \"k{number}\"\nsecret = \"hunter2-{number:043}\"\n{more}\n")
}

#[test]
fn the_last_key_cannot_be_taken_from_a_server_that_others_reach() {
    let public = "[udp]\nlisten = \"0.0.0.0:8089\"\n".to_owned();
    let running = load(&(public + &key(1, "")), &[], &[]).expect("valid");
    let other = load(&key(2, ""), &[], &[]).expect("valid");
    assert_eq!(running.reloaded(&other).expect("valid").auth, other.auth);
    let none = load(&token(1, ""), &[], &[]).expect("valid by itself");
    assert!(running.reloaded(&none).expect_err("it would be open").to_string().contains("datagrams need no signature"));
}

#[test]
fn keys_that_make_no_sense_are_refused_by_key() {
    let prefix = |prefix: &str| format!("device_prefix = \"{prefix}\"");
    let same_secret = key(1, "") + &key(1, "").replace("k1", "k2");
    for (file, name) in [
        (key(1, "").replace("k1", ""), "auth.keys.id"),
        (key(1, "").replace("k1", "a b"), "auth.keys.id"),
        (key(1, "").replace("k1", &"x".repeat(33)), "auth.keys.id"),
        (key(1, "") + &key(2, "").replace("k2", "k1"), "auth.keys.id"),
        (same_secret, "auth.keys.secret"),
        (key(1, "").replace("hunter2-0", "hunter2 0"), "auth.keys.secret"),
        (key(1, "").replace(&"0".repeat(20), ""), "auth.keys.secret"),
        (key(1, "devices = []"), "auth.keys.devices"),
        (key(1, "readings_per_second = 10000001"), "auth.keys.readings_per_second"),
        (key(1, &prefix("")), "auth.keys.device_prefix"),
        (key(1, &prefix(&"x".repeat(65))), "auth.keys.device_prefix"),
        (key(1, &prefix("acme/eu/")) + &token(1, &prefix("acme/")), "auth.keys.device_prefix"),
        (key(1, &prefix("acme/")) + &token(1, &prefix("acme/eu/")), "auth.tokens.device_prefix"),
    ] {
        let error = error_of(&file);
        assert!(error.starts_with(&format!("{name} is ")), "{file:?} gave {error:?}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    let same_tenant = key(1, &prefix("acme/")) + &key(2, &prefix("acme/")) + &token(1, &prefix("acme/"));
    load(&same_tenant, &[], &[]).expect("two keys and a token of one tenant");
}

#[test]
fn the_prefix_of_a_broker_is_as_separate_as_that_of_a_token() {
    let prefix = |prefix: &str| format!("device_prefix = \"{prefix}\"");
    let broker = |prefix: &str| {
        format!(
            "[[mqtt]]\nurl = \"mqtt://h\"\nclient_id = \"c\"\ndevice_prefix = \"{prefix}\"\n\
             [[mqtt.topics]]\ntopic = \"t/{{deviceId}}\"\n"
        )
    };
    for (file, name) in [
        (token(1, &prefix("acme/eu/")) + &broker("acme/"), "auth.tokens.device_prefix"),
        (token(1, &prefix("acme/")) + &broker("acme/eu/"), "mqtt.device_prefix"),
        (key(1, &prefix("acme/eu/")) + &broker("acme/"), "auth.keys.device_prefix"),
    ] {
        let error = error_of(&file);
        assert!(error.starts_with(&format!("{name} is ")), "{file:?} gave {error:?}");
    }
    let running = load(&(token(1, &prefix("acme/")) + &broker("acme/")), &[], &[]).expect("one tenant");
    let other = load(&token(2, &prefix("acme/eu/")), &[], &[]).expect("valid by itself");
    let error = running.reloaded(&other).expect_err("the broker stays").to_string();
    assert!(error.starts_with("auth.tokens.device_prefix is "), "{error}");
}

#[test]
fn the_secret_of_a_key_is_nowhere_shown_and_may_stand_in_a_file_of_its_own() {
    let config = load(&key(1, "expires = 2030-01-01T00:00:00Z"), &[], &[]).expect("valid");
    let secret = format!("hunter2-{:043}", 1);
    assert_eq!(config.auth.keys[0].secret.expose(), secret);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("k2.key");
    std::fs::write(&path, secret.clone() + "\n").expect("writable");
    let by_file = format!("[[auth.keys]]\nid = \"k2\"\nsecret = {{ file = {path:?} }}");
    let in_file = load(&by_file, &[], &[]).expect("valid");
    assert_eq!(in_file.auth.keys[0].secret.expose(), secret);
    for config in [config, in_file] {
        let shown = toml::to_string(&config).expect("TOML");
        assert!(shown.contains("[[auth.keys]]") && !shown.contains("hunter2"), "{shown}");
        assert!(!format!("{config:?}").contains("hunter2"));
    }
    let error = error_of(&by_file.replace("k2.key", "none.key"));
    assert!(error.starts_with("auth.keys.secret cannot be read from ") && error.contains("none.key"), "{error}");
    let variable = format!("[{{ id = \"k1\", secret = \"{secret}\" }}]");
    let from_env = load("", &[("TIDEGAUGE_AUTH__KEYS", &variable)], &[]).expect("valid");
    assert_eq!(from_env.auth.keys[0].secret.expose(), secret);
    for variable in [variable.replace("id", "name"), variable.replace("k1", ""), variable.replace("}]", "")] {
        let error = load("", &[("TIDEGAUGE_AUTH__KEYS", &variable)], &[]).expect_err("an error");
        assert!(!error.contains("hunter2"), "{error}");
    }
    for keys in [format!("keys = {secret:?}"), format!("keys = [{secret:?}]"), format!("keys = {{ k1 = {secret:?} }}")]
    {
        let error = error_of(&format!("[auth]\n{keys}"));
        assert!(error.contains("auth.keys") && error.contains("expected") && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_token_in_the_place_of_its_table_is_not_repeated() {
    for tokens in ["tokens = \"tg_hunter2\"", "tokens = [\"tg_hunter2\"]", "tokens = { name = \"tg_hunter2\" }"] {
        let error = error_of(&format!("[auth]\n{tokens}"));
        assert!(error.starts_with("FILE:2:10: auth.tokens") && !error.contains("hunter2"), "{error}");
        assert!(error.contains("expected ") && !error.contains('\n'), "{error}");
    }
}
