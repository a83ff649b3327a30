//! Commands that are clients, over TLS.

use std::fs;

use super::Folder;
use super::authority::Authority;
use crate::harness::{Finished, Server, run, secret_of};

const CSV: &str = "time,value\n2024-04-20T14:00:00Z,1\n2024-04-20T14:00:10Z,2\n";

async fn import(folder: &Folder, url: &str, flags: &[&str]) -> Finished {
    let (file, token) = (folder.file("readings.csv"), folder.file("token"));
    fs::write(&file, CSV).expect("writable");
    fs::write(&token, secret_of("writer")).expect("writable");
    let always = ["import", &file, "--device", "pump-1", "--url", url, "--token-file", &token, "--retry-for", "5m"];
    run(&[&always[..], flags].concat()).await
}

#[tokio::test]
async fn an_import_over_tls_verifies_and_presents_certificates() {
    let folder = Folder::new();
    folder.authority.client("pump-1", &[]).write(folder.path(), "pump-1");
    folder.authority.client("pump-2", &[]).write(folder.path(), "pump-2");
    let setup = folder.with_clients("").set("auth.client_certificate", "device");
    let setup = setup.token("operator", "scopes = ['admin']").token("writer", "scopes = ['ingest']");
    let server = Server::start(setup).await;
    let [ca, cert, key] = ["ca.pem", "pump-1.pem", "pump-1.key"].map(|file| {
        let marked = folder.file(&format!("marked-{file}"));
        let text = fs::read_to_string(folder.file(file)).expect("PEM");
        fs::write(&marked, format!("\u{feff}{text}")).expect("writable");
        marked
    });
    let done = import(&folder, server.url(), &["--ca-file", &ca, "--client-cert", &cert, "--client-key", &key]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(server.metrics().await.count("tidegauge_readings_accepted_total"), 2);
    let [cert, key] = ["pump-2.pem", "pump-2.key"].map(|file| folder.file(file));
    let done = import(&folder, server.url(), &["--ca-file", &ca, "--client-cert", &cert, "--client-key", &key]).await;
    assert!(done.code == Some(1) && done.stderr.contains("device_forbidden"), "{done:?}");
}

#[tokio::test]
async fn an_import_to_an_untrusted_server_fails_at_once() {
    let folder = Folder::new();
    fs::write(folder.path().join("other.pem"), Authority::new().pem()).expect("writable");
    let server = Server::start(folder.setup("")).await;
    let other = folder.file("other.pem");
    let given = format!("the authority that issued it is not in {other} (--ca-file)");
    for (flags, said) in
        [(&[][..], "name the file with its certificate with --ca-file"), (&["--ca-file", &other], &*given)]
    {
        let refused = import(&folder, server.url(), flags).await;
        assert!(refused.code == Some(1) && refused.stderr.contains(said), "{refused:?}");
        let refused = run(&[&["export", "--url", server.url()], flags].concat()).await;
        assert!(refused.code == Some(1) && refused.stderr.contains(said), "{refused:?}");
    }
    assert_eq!(server.metrics().await.count("tidegauge_readings_received_total"), 0);
}

#[tokio::test]
async fn an_import_without_the_certificate_that_the_server_wants_fails_at_once() {
    let folder = Folder::new();
    fs::write(folder.path().join("operator.pem"), folder.authority.client("operator", &[]).both()).expect("writable");
    Authority::named("another").client("pump-1", &[]).write(folder.path(), "other");
    let server = Server::start(folder.with_clients("client_certificates = 'required'")).await;
    let [ca, cert, key] = ["ca.pem", "other.pem", "other.key"].map(|file| folder.file(file));
    let refused = import(&folder, server.url(), &["--ca-file", &ca]).await;
    assert!(refused.code == Some(1) && refused.stderr.contains("name it with --client-cert"), "{refused:?}");
    let refused =
        import(&folder, server.url(), &["--ca-file", &ca, "--client-cert", &cert, "--client-key", &key]).await;
    let said = format!("the server does not accept {cert} (--client-cert)");
    assert!(refused.code == Some(1) && refused.stderr.contains(&said), "{refused:?}");
}

#[tokio::test]
async fn a_server_with_tls_is_asked_over_tls_whether_it_is_ready() {
    let folder = Folder::new();
    let server = Server::start(folder.setup("")).await;
    let config = server.data_dir().with_file_name("config.toml").display().to_string();
    let ready = run(&["check", "--ready", "--config", &config, "--http", &server.http_addr().to_string()]).await;
    assert_eq!((ready.code, ready.stdout.as_str()), (Some(0), "ready\n"), "{ready:?}");
}

#[tokio::test]
async fn a_report_of_a_server_with_tls_says_how_to_get_its_metrics() {
    let folder = Folder::new();
    let server = Server::start(folder.setup("").token("operator", "scopes = ['admin']")).await;
    let (report, http) = (folder.file("report"), server.http_addr().to_string());
    let written = server.check(&["--report", &report, "--http", &http]).await;
    assert_eq!(written.code, Some(0), "{written:?}");
    let text = fs::read_to_string(&report).expect("the report");
    let url = format!("https://NAME:{}/metrics", server.http_addr().port());
    assert!(text.contains("none: with TLS, this command sends no token") && text.contains(&url), "{text}");
}

#[tokio::test]
async fn invalid_files_and_flags_are_refused() {
    let folder = Folder::new();
    let (ca, none, server) = (folder.file("ca.pem"), folder.file("none.pem"), folder.file("server.key"));
    fs::write(folder.path().join("empty.pem"), "").expect("writable");
    let empty = folder.file("empty.pem");
    let (http, https) = ("http://127.0.0.1:1", "https://127.0.0.1:1");
    for (url, flags, said) in [
        (http, &["--ca-file", &ca][..], "are for https://"),
        (https, &["--ca-file", &none], "none.pem (--ca-file)"),
        (https, &["--ca-file", &empty], "empty.pem (--ca-file) holds no certificate"),
        (https, &["--client-cert", &ca], "--client-key"),
        (https, &["--client-cert", &ca, "--client-key", &ca], "ca.pem (--client-key) holds no private key"),
        (https, &["--client-cert", &empty, "--client-key", &server], "are no certificate and its key"),
    ] {
        let refused = import(&folder, url, flags).await;
        assert!(refused.code != Some(0) && refused.stderr.contains(said), "{said}: {refused:?}");
    }
}

#[tokio::test]
async fn an_expired_certificate_is_an_error_of_the_check() {
    let folder = Folder::new();
    let config = folder.path().join("config.toml");
    let (path, data) = (config.to_str().expect("UTF-8"), folder.file("data"));
    fs::create_dir(&data).expect("our folder");
    for (is_expired, found) in [(false, "ok       certificate "), (true, "error    certificate ")] {
        if is_expired {
            folder.authority.expired_server().write(folder.path(), "server");
        }
        fs::write(&config, folder.setup("").to_toml()).expect("our folder");
        let checked = run(&["check", "--full", "--config", path, "--data-dir", &data]).await;
        assert!(checked.stdout.contains(found), "{checked:?}");
        assert_eq!(checked.stdout.contains("mend: replace the files of http.tls.cert_file"), is_expired, "{checked:?}");
    }
}
