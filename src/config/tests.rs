//! Loading: who overrides whom, and how mistakes are reported.

use std::io::Write;

use super::*;

mod auth;
mod webhook;

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

/// The error of a file.
fn error_of(file: &str) -> String {
    load(file, &[], &[]).expect_err("an error")
}

#[test]
fn nothing_set_gives_the_defaults() {
    assert_eq!(Config::load(None, std::iter::empty(), &[]).expect("valid"), Config::default());
    assert_eq!(load("", &[], &[]), Ok(Config::default()));
}

#[test]
fn a_flag_overrides_the_environment_which_overrides_the_file() {
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
    let env = [("TIDEGAUGE_TOKEN", "x"), ("TIDEGAUGE", "x"), ("HTTP__LISTEN", "x"), ("PATH", "/bin")];
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
        "[udp]\nsockets = 9223372036854775808\n[log]\nmax_bytes = -1",
        "[log]\n[log]",
        "[http]\n[http.tls] # TLS\n\n[log]\n  [http.tls]\ncert_file = \"c\"",
        "[log]\nsync = \"always\"\nmax_bytes = 1\nsync = \"always\"",
        "[http]\ntls.key_file = \"k\"\n[log]\n[http]",
        "[[webhook]]\npath = \"/a\"\n[[webhook]]\npath = \"/b\"\npath = \"/c\"",
        "[[mqtt]]\nclient_id = \"a\"\n[mqtt]\nclient_id = \"b\"",
        "[sqlite]\nfile = { a = 1, a = 2 }",
        "[flush]\nmax_age = 60",
        "[flush]\nmax_age = \"1 minute\"",
        "[retention]\nreadings = \"always\"",
        "[telemetry]\nlog_level = \"inof\"",
        "[server]\ndata_dir = \"°°\" x",
        "[http]\nlisten = 127.0.0.1:8080",
        "[http]\nallowed_hosts = [iot.example.com]",
        "[retention]\nreadings = forever",
        "[auth]\nallow_anonymous = True",
        "[auth]\nallow_anonymous = \"yes\"",
        "[http]\nlisten = 8080",
        "[retention]\nreadings = 90",
        "[log]\nsync = 1",
        "[server]\ndata_dir = 1",
        "[mqtt]\nurl = \"mqtt://h\"",
        "[auth.tokens]\nname = \"t\"",
        "[http.allowed_hosts]\na = \"h\"",
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
        ("TIDEGAUGE_LOG_LEVEL", "debug"),
        ("TIDEGAUGE_DATA_DIR", "/var/lib/tidegauge"),
        ("TIDEGAUGE_MONGODB_URI", "mongodb://host"),
        ("TIDEGAUGE_HTTP_TLS_CERT_FILE", "server.pem"),
        ("TIDEGAUGE_HTTP__MAX_CONNECTIONS", "-1"),
        ("TIDEGAUGE_HTTP__MAX_CONNECTIONS", "many"),
        ("TIDEGAUGE_PENDING__MAX_BYTES", "lots"),
        ("TIDEGAUGE_AUTH__ALLOW_ANONYMOUS", "yes"),
        ("TIDEGAUGE_HTTP__LISTEN", "8080"),
        ("TIDEGAUGE_HTTP__ALLOWED_HOSTS", "a.example.com"),
        ("TIDEGAUGE_RETENTION__READINGS", "400"),
        ("TIDEGAUGE_LOG__SYNC", "1"),
        ("TIDEGAUGE_MQTT__URL", "mqtt://h"),
        ("TIDEGAUGE_AUTH__TOKENS", "[{ name = 5 }]"),
    ];
    let mut errors = variables.map(|variable| load("", &[variable], &[]).expect_err("an error")).to_vec();
    errors.push(load("", &[], &[flag("--http", "http", "listen", "here")]).expect_err("an error"));
    errors.push(load("", &[], &[flag("--udp", "udp", "listen", "18104")]).expect_err("an error"));
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn all_mistakes_are_reported_in_one_go_each_with_its_place() {
    let file = "[http]\nmax_connections = 0\n[sqlite]\nfil = 1\n[log]\nmax_bytes = \"8G\"\nsync_interval = \"2h\"\n\
                [retention]\nreadings = \"30000d\"\n[udp]\nsockets = 65\n[pending]\nmax_bytes = 0";
    let env = [("TIDEGAUGE_QUERY__MAX_HOURS", "0"), ("TIDEGAUGE_LOG_LEVEL", "debug"), ("TIDEGAUGE_LOG__SYNC", "never")];
    let flags = [flag("--udp", "udp", "listen", "here"), flag("--store", "store", "kind", "mysql")];
    let error = load(file, &env, &flags).expect_err("mistakes");
    insta::assert_snapshot!(error);
}

#[test]
fn what_follows_from_another_mistake_is_not_reported() {
    for (file, mistakes) in [
        // Without the invalid `readings`, `rollups` would be shorter than the default of `readings`.
        ("[retention]\nreadings = \"1 year\"\nrollups = \"30d\"", 1),
        ("[retention]\nreadings = \"1m\"\nrollups = \"30d\"", 1),
        ("[mongodb]\nuri = \"nowhere\"\n[store]\nkind = \"mongodb\"", 1),
        ("[http]\nlisten = \"0.0.0.0:80\"\n[auth]\ntokens = 1", 1),
        ("[http.tls]\ncert_file = \"\"\nkey_file = \"k\"\n[http]\nmax_connections = 0", 2),
    ] {
        let error = error_of(file);
        let found = error.strip_suffix('\n').unwrap_or(&error).lines().filter(|line| line.starts_with("FILE:")).count();
        assert_eq!(found, mistakes, "{file:?} gave {error}");
    }
}

#[test]
fn looking_for_mistakes_ends() {
    let unknown: Vec<String> = (0..2_000).map(|number| format!("unknown{number} = 1")).collect();
    let error = error_of(&unknown.join("\n"));
    assert!(error.starts_with("at least 50 mistakes in the configuration\n"), "{error}");
}

#[test]
fn a_value_of_the_file_that_is_overridden_is_named_with_what_overrides_it() {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    let text = "[server]\ndata_dir = \"./data\"\n[http]\nlisten = \"127.0.0.1:1\"\n\
                [mongodb]\nuri = \"mongodb://a:one@h\"\n[log]\nsync = \"always\"\n[udp]\nsockets = 3";
    file.write_all(text.as_bytes()).expect("a temporary file");
    let env = [
        ("TIDEGAUGE_MONGODB__URI", "mongodb://a:two@h"),
        ("TIDEGAUGE_LOG__SYNC", "always"), // the same again
        ("TIDEGAUGE_HTTP__LISTEN", "127.0.0.1:2"),
        ("TIDEGAUGE_FLUSH__MAX_AGE", "1s"), // the file does not set it
    ];
    let env = env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let flags = [flag("--data-dir", "server", "data_dir", "/var/lib"), flag("--http", "http", "listen", "127.0.0.1:3")];
    let (_, overridden) = Config::load_and_compare(Some(file.path()), env, &flags).expect("valid");
    let name = file.path().display().to_string();
    let told: Vec<String> = overridden.iter().map(|overridden| overridden.to_string().replace(&name, "FILE")).collect();
    let expected = [
        "http.listen = \"127.0.0.1:1\" (FILE:4:10) is overridden by --http: \"127.0.0.1:3\"",
        "mongodb.uri (FILE:6:7) is overridden by environment variable TIDEGAUGE_MONGODB__URI",
        "server.data_dir = \"./data\" (FILE:2:12) is overridden by --data-dir: \"/var/lib\"",
    ];
    assert_eq!(told, expected);
}

#[test]
fn weeks_and_years_are_taken_and_one_limit_holds_for_all_durations() {
    let readings = |text: &str| load(&format!("[retention]\nreadings = \"{text}\""), &[], &[]);
    for (text, days) in [("1y", 365), ("2w", 14), ("68y", 24_820), ("24855d", 24_855)] {
        assert_eq!(readings(text).expect(text).retention.readings, Keep::For(Period::days(days)), "{text}");
    }
    for text in ["24856d", "30000d", "36500d", "69y"] {
        let error = readings(text).expect_err(text);
        assert!(error.contains("at most 24855d"), "{text}: {error}");
    }
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
        ("[ingest.senml]\nseparators = \"//\"", "ingest.senml.separators"),
        ("[limits]\ntoken_bytes_in_flight = \"257MiB\"", "limits.token_bytes_in_flight"),
        ("[log]\nmin_free_bytes = \"16385GiB\"", "log.min_free_bytes"),
        ("[log]\nsync_interval = \"0s\"", "log.sync_interval"),
        ("[log]\ngroup_window = \"1001ms\"", "log.group_window"),
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
        ("[mongodb]\ncollection = \".a\"", "mongodb.collection"),
        ("[mongodb]\ndatabase = \"local\"", "mongodb.database"),
        ("[mongodb.timeseries]\nbucket_max_span = \"0s\"", "mongodb.timeseries.bucket_max_span"),
        ("[mongodb.timeseries]\nbucket_max_span = \"1500ms\"", "mongodb.timeseries.bucket_max_span"),
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
        ("[mongodb]\ndevices_collection = \"rollups\"", "mongodb.devices_collection"),
        ("[mongodb]\nrollups_collection = \"buckets_instances\"", "mongodb.rollups_collection"),
        ("[mongodb]\ndevices_collection = \"buckets_metadata\"", "mongodb.devices_collection"),
        ("[mongodb]\ncollection = \"devices\"", "mongodb.devices_collection"),
        ("[query]\nmax_hours = 0", "query.max_hours"),
        ("[query]\nmax_points = 0", "query.max_points"),
        ("[query]\nmax_readings = 0", "query.max_readings"),
        ("[query]\ndefault_readings = 0", "query.default_readings"),
        ("[query]\nmax_readings = 999", "query.max_readings"),
        ("[query]\ncatch_up_timeout = \"2m\"", "query.catch_up_timeout"),
        ("[query]\nmax_devices = 0", "query.max_devices"),
        ("[query]\nmax_concurrent = 201", "query.max_concurrent"),
        ("[query]\nmax_files = 201", "query.max_files"),
        ("[query]\ntimeout = \"0s\"", "query.timeout"),
        ("[flush]\nmax_dead_letter_bytes = 1", "flush.max_dead_letter_bytes"),
    ] {
        let error = error_of(file);
        // The error has a place if the file sets the key that the error names. Otherwise the key has its
        // default, which contradicts a value of the file.
        let (place, rest) =
            error.split_once(": ").filter(|(place, _)| place.starts_with("FILE:")).unwrap_or(("", &error));
        assert!(rest.starts_with(&format!("{key} is ")), "{file:?} gave {error:?}");
        let name = key.rsplit('.').next().expect("a name");
        assert_eq!(!place.is_empty(), file.contains(&format!("\n{name} = ")), "{file:?} gave {error:?}");
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
        error_of(&format!("[[auth.keys]]\nid = \"{}\"\nsecret = \"gateway-1\"", "hunter2".repeat(7))),
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
    assert!(error_of("[mongodb]\nuri = \"mongodb://h/a.b\"").contains("mongodb.uri names the database \"a.b\""));
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
