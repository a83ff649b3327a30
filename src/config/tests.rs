//! Loading: who overrules whom, and how mistakes are reported.

use std::io::Write;

use super::*;

fn load(file: &str, env: &[(&str, &str)], overrides: &[Override]) -> Result<Config, String> {
    let mut stored = tempfile::NamedTempFile::new().expect("a temporary file");
    stored.write_all(file.as_bytes()).expect("a temporary file");
    let env = env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let loaded = Config::load(Some(stored.path()), env, overrides);
    loaded.map_err(|error| error.to_string().replace(&stored.path().display().to_string(), "FILE"))
}

fn flag(flag: &'static str, section: &'static str, key: &'static str, value: &str) -> Override {
    Override { flag, section, key, value: value.to_owned() }
}

/// What is wrong with a file by itself.
fn error_of(file: &str) -> String {
    load(file, &[], &[]).expect_err("an error")
}

#[test]
fn nothing_set_gives_the_defaults() {
    assert_eq!(Config::load(None, std::iter::empty(), &[]).expect("valid"), Config::default());
    assert_eq!(load("", &[], &[]), Ok(Config::default()));
}

#[test]
fn a_flag_overrules_the_environment_which_overrules_the_file() {
    let file = "[http]\nmax_connections = 1\nheader_timeout = \"1s\"\nbody_timeout = \"1s\"";
    let env = [("TIDEGAUGE_HTTP__HEADER_TIMEOUT", "2s"), ("TIDEGAUGE_HTTP__BODY_TIMEOUT", "2s")];
    let config = load(file, &env, &[flag("--body-timeout", "http", "body_timeout", "3s")]).expect("valid");
    assert_eq!(config.http.max_connections, 1);
    assert_eq!(config.http.header_timeout, Period::secs(2));
    assert_eq!(config.http.body_timeout, Period::secs(3));
    assert_eq!(config.http.max_body_bytes, Bytes::mib(16));
}

#[test]
fn the_environment_needs_no_quotes_and_takes_each_type() {
    let env = [
        ("TIDEGAUGE_HTTP__LISTEN", "[::1]:0"),
        ("TIDEGAUGE_HTTP__MAX_BODY_BYTES", "1048576"),
        ("TIDEGAUGE_AUTH__ALLOW_ANONYMOUS", "true"),
        ("TIDEGAUGE_FLUSH__MAX_READINGS", "7"),
        ("TIDEGAUGE_MONGODB__URI", "mongodb://ann:p=w@host/?a=b#c"),
        ("TIDEGAUGE_MONGODB__DATABASE", "2026"),
        ("TIDEGAUGE_LOG__SYNC", "\"interval\""),
        ("TIDEGAUGE_INGEST__LINE_PROTOCOL__DEVICE_TAGS", "[\"id\"]"),
        ("TIDEGAUGE_TELEMETRY__LOG_LEVEL", "info,tidegauge=debug"),
    ];
    let config = load("", &env, &[]).expect("valid");
    assert_eq!(config.http.listen.to_string(), "[::1]:0");
    assert_eq!(config.http.max_body_bytes, Bytes::mib(1));
    assert!(config.auth.allow_anonymous);
    assert_eq!(config.flush.max_readings, 7);
    assert_eq!(config.mongodb.uri.as_ref().expect("set").expose(), "mongodb://ann:p=w@host/?a=b#c");
    assert_eq!(config.mongodb.database(), "2026");
    assert_eq!(config.log.sync, SyncPolicy::Interval);
    assert_eq!(config.ingest.line_protocol.device_tags, ["id"]);
    assert_eq!(config.telemetry.log_level.to_string(), "info,tidegauge=debug");
}

#[test]
fn variables_of_others_are_ignored() {
    let env = [("TIDEGAUGE_TEST_MONGODB_URI", "x"), ("TIDEGAUGE", "x"), ("HTTP__LISTEN", "x"), ("PATH", "/bin")];
    assert_eq!(load("", &env, &[]), Ok(Config::default()));
    let of_a_cluster = [
        ("TIDEGAUGE_SERVICE_HOST", "10.0.0.11"),
        ("TIDEGAUGE_SERVICE_PORT", "8080"),
        ("TIDEGAUGE_SERVICE_PORT_HTTP", "8080"),
        ("TIDEGAUGE_PORT", "tcp://10.0.0.11:8080"),
        ("TIDEGAUGE_PORT_8080_TCP", "tcp://10.0.0.11:8080"),
        ("TIDEGAUGE_PORT_8080_TCP_ADDR", "10.0.0.11"),
        ("TIDEGAUGE_UDP_SERVICE_HOST", "10.0.0.12"),
        ("TIDEGAUGE_UDP_PORT_8089_UDP_PROTO", "udp"),
    ];
    assert_eq!(load("", &of_a_cluster, &[]), Ok(Config::default()));
}

#[test]
fn a_mistake_in_the_file_is_reported_with_its_place_and_key() {
    let files = [
        "[http]\n\n  max_conections = 1",
        "[htpp]\nlisten = 1",
        "http = 1",
        "[http]\nmax_connections = \"many\"",
        "[http]\nlisten = \"localhost\"",
        "[log]\nsync = \"never\"",
        "[log]\nmax_bytes = -1",
        "[log]\nmax_bytes = \"8G\"",
        "[log]\n[log]",
        "[flush]\nmax_age = 60",
        "[flush]\nmax_age = \"1 minute\"",
        "[retention]\nreadings = \"always\"",
        "[telemetry]\nlog_level = \"inof\"",
        "[server]\ndata_dir = \"°°\" x",
    ];
    insta::assert_snapshot!(files.map(error_of).join("\n"));
}

#[test]
fn a_mistake_in_the_environment_or_in_a_flag_names_it() {
    let variables = [
        ("TIDEGAUGE_HTTP__MAX_CONECTIONS", "1"),
        ("TIDEGAUGE_HTPP__LISTEN", "1"),
        ("TIDEGAUGE_HTTP_LISTEN", "127.0.0.1:80"),
        ("TIDEGAUGE_LISTEN", "127.0.0.1:80"),
        ("TIDEGAUGE_PORT", "80"),
        ("TIDEGAUGE_TOKENS", "x"),
        ("TIDEGAUGE_HTTP__MAX_CONNECTIONS", "-1"),
        ("TIDEGAUGE_HTTP__MAX_CONNECTIONS", "many"),
        ("TIDEGAUGE_PENDING__MAX_BYTES", "lots"),
        ("TIDEGAUGE_AUTH__ALLOW_ANONYMOUS", "yes"),
    ];
    let mut errors = variables.map(|variable| load("", &[variable], &[]).expect_err("an error")).to_vec();
    errors.push(load("", &[], &[flag("--http", "http", "listen", "here")]).expect_err("an error"));
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Config::load(Some("/no/such/file".as_ref()), std::iter::empty(), &[]).expect_err("an error");
    assert!(error.to_string().starts_with("/no/such/file: cannot read the configuration: "), "{error}");
}

#[test]
fn values_without_sense_are_refused_by_key() {
    for (file, key) in [
        ("[server]\ndata_dir = \"\"", "server.data_dir"),
        ("[server]\nshutdown_grace = \"2h\"", "server.shutdown_grace"),
        ("[http]\nmax_connections = 0", "http.max_connections"),
        ("[http]\nmax_body_bytes = 0", "http.max_body_bytes"),
        ("[http]\nmax_bytes_in_flight = \"1MiB\"", "http.max_bytes_in_flight"),
        ("[http]\nheader_timeout = \"0s\"", "http.header_timeout"),
        ("[http]\nbody_timeout = \"0s\"", "http.body_timeout"),
        ("[http.tls]\nhandshake_timeout = \"0s\"", "http.tls.handshake_timeout"),
        ("[http.tls]\ncert_file = \"\"", "http.tls.cert_file"),
        ("[http.tls]\ncert_file = \"c\"", "http.tls.cert_file"),
        ("[http.tls]\nkey_file = \"k\"", "http.tls.key_file"),
        ("[http.tls]\nclient_ca_file = \"a\"", "http.tls.client_ca_file"),
        ("[http.tls]\ncert_file = \"c\"\nkey_file = \"k\"\nclient_crl_file = \"l\"", "http.tls.client_crl_file"),
        ("[http.tls]\nclient_certificates = \"required\"", "http.tls.client_certificates"),
        ("[auth]\nclient_certificate = \"device\"", "auth.client_certificate"),
        ("[udp]\nsockets = 65", "udp.sockets"),
        ("[udp]\nreceive_buffer = \"1KiB\"", "udp.receive_buffer"),
        ("[udp]\nmax_datagram_bytes = \"64KiB\"", "udp.max_datagram_bytes"),
        ("[udp]\nmax_sequences = 10000001", "udp.max_sequences"),
        ("[ingest]\nmax_future = \"366d\"", "ingest.max_future"),
        ("[ingest]\nmax_readings_per_request = 0", "ingest.max_readings_per_request"),
        ("[ingest]\nmax_metrics_per_reading = 0", "ingest.max_metrics_per_reading"),
        ("[ingest]\nmax_metadata_bytes = \"1MiB\"", "ingest.max_metadata_bytes"),
        ("[ingest.line_protocol]\ndevice_tags = []", "ingest.line_protocol.device_tags"),
        ("[ingest.line_protocol]\ndevice_tags = [\"\"]", "ingest.line_protocol.device_tags"),
        ("[ingest.senml]\nseparators = \"/ \"", "ingest.senml.separators"),
        ("[log]\nsync_interval = \"0s\"", "log.sync_interval"),
        ("[log]\nsegment_bytes = \"63KiB\"", "log.segment_bytes"),
        ("[log]\nsegment_bytes = \"1MiB\"\nmax_bytes = \"2047KiB\"", "log.segment_bytes"),
        ("[pending]\nmax_bytes = 0", "pending.max_bytes"),
        ("[flush]\nmax_readings = 0", "flush.max_readings"),
        ("[flush]\nmax_age = \"0s\"", "flush.max_age"),
        ("[flush]\nmax_in_flight = 0", "flush.max_in_flight"),
        ("[flush]\nmax_buckets_per_write = 0", "flush.max_buckets_per_write"),
        ("[flush]\nmax_write_bytes = \"17MiB\"", "flush.max_write_bytes"),
        ("[flush]\nretry_initial = \"0s\"", "flush.retry_initial"),
        ("[flush]\nretry_max = \"2h\"", "flush.retry_max"),
        ("[flush]\nretry_initial = \"11s\"", "flush.retry_max"),
        ("[store]\nkind = \"mongodb\"", "store.kind"),
        ("[store]\nkind = \"mongodb-timeseries\"", "store.kind"),
        ("[mongodb.timeseries]\ncollection = \"rollups\"", "mongodb.rollups_collection"),
        ("[mongodb.timeseries]\ncollection = \"system.x\"", "mongodb.timeseries.collection"),
        ("[mongodb.timeseries]\nbucket_max_span = \"0s\"", "mongodb.timeseries.bucket_max_span"),
        ("[mongodb.timeseries]\nmax_known_devices = 0", "mongodb.timeseries.max_known_devices"),
        ("[sqlite]\nfile = \"\"", "sqlite.file"),
        ("[mongodb]\ndatabase = \"a.b\"", "mongodb.database"),
        ("[mongodb]\ncollection = \"\"", "mongodb.collection"),
        ("[mongodb]\ntimeout = \"0s\"", "mongodb.timeout"),
        ("[mongodb]\nmax_readings_per_document = 0", "mongodb.max_readings_per_document"),
        ("[mongodb]\nmax_document_bytes = \"16MiB\"", "mongodb.max_document_bytes"),
        ("[mongodb]\nuri = \"mongodb://h\"\nmax_readings_per_document = 999", "flush.max_readings"),
        ("[retention]\nreadings = \"59m\"", "retention.readings"),
        ("[retention]\nrollups = \"30d\"", "retention.rollups"),
        ("[mongodb]\nrollups_collection = \"buckets\"", "mongodb.rollups_collection"),
        ("[query]\nmax_hours = 0", "query.max_hours"),
        ("[query]\nmax_points = 0", "query.max_points"),
        ("[query]\nmax_readings = 0", "query.max_readings"),
        ("[query]\ndefault_readings = 0", "query.default_readings"),
        ("[query]\nmax_readings = 999", "query.max_readings"),
        ("[query]\ncatch_up_timeout = \"2m\"", "query.catch_up_timeout"),
        ("[query]\nmax_devices = 0", "query.max_devices"),
        ("[query]\nstore_timeout = \"0s\"", "query.store_timeout"),
        ("[flush]\nmax_dead_letter_bytes = 1", "flush.max_dead_letter_bytes"),
    ] {
        let error = error_of(file);
        assert!(error.starts_with(&format!("{key} is ")), "{file:?} gave {error:?}");
    }
}

#[test]
fn listening_beyond_loopback_without_authentication_takes_a_decision() {
    for listen in ["0.0.0.0:8080", "192.0.2.1:80", "[::]:8080"] {
        for (section, way_out) in [("http", "tidegauge token new"), ("udp", "tidegauge key new")] {
            let file = format!("[{section}]\nlisten = \"{listen}\"");
            let error = error_of(&file);
            let key_is = format!("{section}.listen is ");
            assert!(error.starts_with(&key_is) && error.contains("listen on loopback"), "{error}");
            assert!(error.contains("auth.allow_anonymous = true") && error.contains(way_out), "{error}");
            load(&format!("{file}\n[auth]\nallow_anonymous = true"), &[], &[]).expect("it was decided");
        }
        let http = format!("[http]\nlisten = \"{listen}\"\n[udp]\nlisten = \"off\"\n");
        load(&(http + &token(1, "")), &[], &[]).expect("tokens are asked for");
        let udp = format!("[udp]\nlisten = \"{listen}\"\n");
        let error = error_of(&(udp.clone() + &token(1, "")));
        assert!(error.contains("nobody has to sign") && error.contains("udp.listen = \"off\""), "{error}");
        load(&(udp + &key(1, "")), &[], &[]).expect("datagrams have to be signed");
        let http = format!("[http]\nlisten = \"{listen}\"\n");
        assert!(error_of(&(http + &key(1, ""))).contains("nobody has to authenticate"), "a key is no token");
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
    assert!(running.reloaded(&none).expect_err("it would be open").to_string().contains("nobody has to authenticate"));
}

const TLS: &str = "[http.tls]\ncert_file = \"c\"\nkey_file = \"k\"\nclient_ca_file = \"a\"\n";

#[test]
fn certificates_that_name_devices_close_a_public_server_and_certificates_that_name_nobody_do_not() {
    let public = format!("[udp]\nlisten = \"off\"\n[http]\nlisten = \"0.0.0.0:8080\"\n{TLS}");
    let required = format!("{public}client_certificates = \"required\"\n");
    for open in [&public, &required] {
        assert!(error_of(open).contains("nobody has to authenticate"), "{open}");
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
    let secret = "tg_hunter2";
    let file = token(1, "").replace(&format!("sha256:{:064x}", 1), secret);
    let variable = format!("[{{ name = \"t\", hash = \"{secret}\", scopes = [\"query\"] }}]");
    let from_env = load("", &[("TIDEGAUGE_AUTH__TOKENS", &variable)], &[]).expect_err("an error");
    for error in [error_of(&file), from_env] {
        assert!(error.contains("sha256:") && !error.contains("hunter2"), "{error}");
    }
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
    assert!(running.reloaded(&none).expect_err("it would be open").to_string().contains("nobody has to sign"));
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
fn the_store_follows_the_uri_unless_it_is_named() {
    let kind = |file: &str| load(file, &[], &[]).expect("valid").store_kind();
    assert_eq!(kind(""), StoreKind::Sqlite);
    assert_eq!(kind("[mongodb]\nuri = \"mongodb://h\""), StoreKind::Mongodb);
    assert_eq!(kind("[mongodb]\nuri = \"mongodb://h\"\n[store]\nkind = \"sqlite\""), StoreKind::Sqlite);
}

#[test]
fn the_embedded_store_lives_in_the_data_folder_unless_it_is_named() {
    let file = |file: &str| load(file, &[], &[]).expect("valid").sqlite_file();
    assert_eq!(file("[server]\ndata_dir = \"/d\""), PathBuf::from("/d/tidegauge.sqlite"));
    assert_eq!(file("[sqlite]\nfile = \"/f.db\""), PathBuf::from("/f.db"));
}

#[test]
fn no_message_and_no_printed_configuration_holds_the_password() {
    let config = load("[mongodb]\nuri = \"mongodb://ann:hunter2@host\"", &[], &[]).expect("valid");
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(!toml::to_string(&config).expect("TOML").contains("hunter2"));

    let errors = [
        error_of("[mongodb]\nuri = \"mongo://ann:hunter2@host\""),
        error_of("[mongodb]\nuri = \"mongodb://ann:hunter2@host"),
        load("", &[("TIDEGAUGE_MONGODB__URI", "ann:hunter2@host")], &[]).expect_err("an error"),
        load("", &[("TIDEGAUGE_MONGODB__URL", "mongodb://ann:hunter2@host")], &[]).expect_err("an error"),
    ];
    for error in errors {
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn the_database_is_what_its_key_says_else_what_the_connection_string_names() {
    let uri = "[mongodb]\nuri = \"mongodb://ann:secret@h/plant?replicaSet=rs0\"\n";
    let database = |file: &str, env: &[(&str, &str)]| load(file, env, &[]).expect("valid").mongodb.database();
    assert_eq!(database("", &[]), "tidegauge");
    assert_eq!(database(uri, &[]), "plant");
    assert_eq!(database(&format!("{uri}database = \"other\""), &[]), "other");
    assert_eq!(database(uri, &[("TIDEGAUGE_MONGODB__DATABASE", "tidegauge")]), "tidegauge");
    assert!(error_of("[mongodb]\nuri = \"mongodb://h/a.b\"").starts_with("mongodb.uri names the database \"a.b\""));
}

#[test]
fn what_follows_from_other_keys_is_filled_in_and_makes_the_same_configuration() {
    for file in
        ["", "[mongodb]\nuri = \"mongodb://h/plant\"", "[server]\ndata_dir = \"d\"\n[retention]\nreadings = \"9999d\""]
    {
        let config = load(file, &[], &[]).expect("valid");
        let filled = config.filled();
        assert_eq!(filled.store.kind, Some(config.store_kind()));
        assert_eq!(filled.retention.rollups, Some(config.retention.rollups()));
        assert_eq!(
            (filled.mongodb.database(), filled.sqlite_file()),
            (config.mongodb.database(), config.sqlite_file())
        );
        let shown = toml::to_string(&filled).expect("TOML");
        assert_eq!(load(&shown, &[], &[]).expect("valid"), filled);
    }
    let shown = |file| toml::to_string(&load(file, &[], &[]).expect("valid").filled()).expect("TOML");
    let sqlite = shown("");
    for line in ["kind = \"sqlite\"", "file = \"./data/tidegauge.sqlite\"", "token_bytes_in_flight = ", "rollups = "] {
        assert!(sqlite.contains(&format!("\n{line}")), "{line} in {sqlite}");
    }
    assert!(shown("[mongodb]\nuri = \"mongodb://h/plant\"").contains("\ndatabase = \"plant\""));
}

#[test]
fn the_keys_that_differ_are_named_where_only_a_secret_differs_too() {
    let uri = "[mongodb]\nuri = \"mongodb://ann:SECRET@h\"\n";
    let config = |file: &str| load(file, &[], &[]).expect("valid");
    let (one, two) = (config(uri), config(&uri.replace("SECRET", "other")));
    assert_eq!(one.differing_keys(&one), [""; 0]);
    assert_eq!(one.differing_keys(&two), ["mongodb.uri"]);
    let three = config("[log]\nmax_bytes = \"9GiB\"\n[ingest.senml]\nseparators = \"/\"\n[sqlite]\nfile = \"f\"");
    let expected = ["ingest.senml.separators", "log.max_bytes", "mongodb.uri", "sqlite.file"];
    assert_eq!(one.differing_keys(&three), expected);
    assert_eq!(three.differing_keys(&one), expected);
}
