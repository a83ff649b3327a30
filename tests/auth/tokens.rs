//! Tokens and the routes that they allow.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::json;

use super::{get, ingest, reading, refused, setup};
use crate::harness::{Answer, Server, Setup, run, secret_of};

const LINE: &str = "m,device=d value=1 1713621610000000000";

fn all_scopes() -> Setup {
    setup().token("writer", "scopes = ['ingest']").token("reader", "scopes = ['query']")
}

async fn with_header(server: &Server, method: Method, path: &str, authorization: &str, body: &str) -> Answer {
    let request = server.request(method, path).header("authorization", authorization);
    server.send(request.header("content-type", "application/json").body(body.to_owned())).await
}

#[tokio::test]
async fn each_route_needs_exactly_its_scope() {
    let server = Server::start(all_scopes()).await;
    let body = reading("d", 1.0).to_string();
    let routes = [
        (Method::POST, "/v1/readings", body.as_str(), "writer"),
        (Method::POST, "/write", LINE, "writer"),
        (Method::POST, "/api/v2/write", LINE, "writer"),
        (Method::POST, "/api/v3/write_lp", LINE, "writer"),
        (Method::POST, "/query?q=SHOW+DATABASES", "", "reader"),
        (Method::GET, "/v1/devices", "", "reader"),
        (Method::GET, "/v1/rollups?device=d", "", "reader"),
        (Method::GET, "/v1/devices/d/rollups", "", "reader"),
        (Method::GET, "/v1/devices/d/readings", "", "reader"),
        (Method::GET, "/v1/devices/d/latest", "", "reader"),
        (Method::GET, "/metrics", "", "operator"),
    ];
    for (method, path, body, owner) in &routes {
        for name in ["writer", "reader", "operator", "unknown"] {
            let shown = format!("Bearer {}", secret_of(name));
            let status = with_header(&server, method.clone(), path, &shown, body).await.status;
            let expected = match name {
                "unknown" => status == 401,
                name if name == *owner => status < 300,
                _ => status == 403,
            };
            assert!(expected, "{name} got {status} for {path}");
        }
        let answer = server.send(server.request(method.clone(), path).body((*body).to_owned())).await;
        assert_eq!(answer.status, 401, "{path}: {}", answer.text());
        assert!(answer.header("www-authenticate").starts_with("Bearer realm=\"tidegauge\""), "{path}");
    }
}

#[tokio::test]
async fn a_refusal_has_the_error_format_of_each_api() {
    let server = Server::start(all_scopes()).await;
    let none = server.ingest(&reading("d", 1.0)).await;
    refused(&none, 401, "unauthorized");
    assert_eq!((none.header("content-type"), none.header("retry-after")), ("application/problem+json", ""));
    assert_eq!(none.header("www-authenticate"), "Bearer realm=\"tidegauge\"");
    let unknown = ingest(&server, "unknown", &reading("d", 1.0)).await;
    refused(&unknown, 401, "unauthorized");
    assert_eq!(unknown.header("www-authenticate"), "Bearer realm=\"tidegauge\", error=\"invalid_token\"");
    let reader = ingest(&server, "reader", &reading("d", 1.0)).await;
    refused(&reader, 403, "forbidden");
    assert_eq!(reader.json()["detail"], "the token lacks the scope \"ingest\"");
    assert_eq!(reader.header("www-authenticate"), "");

    let write = async |path: &str| server.post(path, "text/plain", LINE).await;
    let v1 = write("/write").await;
    let way_in = "this request needs a token: Authorization: Bearer TOKEN; basic authentication with the token as \
                  password works too";
    assert_eq!((v1.status, v1.json()), (401, json!({ "error": way_in })));
    assert_eq!(v1.header("x-influxdb-error"), v1.json()["error"]);
    for path in ["/write?db=plant&u=ann&p=secret", "/query?q=SHOW+DATABASES&p=secret"] {
        let of_address = format!("{way_in}; u and p in the address are ignored");
        assert_eq!(write(path).await.json(), json!({ "error": of_address }), "{path}");
    }
    let v2 = write("/api/v2/write").await;
    assert_eq!((v2.status, &v2.json()["code"]), (401, &json!("unauthorized")));
    let v3 = write("/api/v3/write_lp").await;
    assert_eq!((v3.status, v3.json()["error"].is_string()), (401, true));
    let challenges: Vec<_> = v2.headers.get_all("www-authenticate").iter().collect();
    assert_eq!(challenges, ["Bearer realm=\"tidegauge\"", "Basic realm=\"tidegauge\""]);
    let forbidden = super::post(&server, "reader", "/api/v2/write", "text/plain", LINE).await;
    assert_eq!((forbidden.status, &forbidden.json()["code"]), (403, &json!("forbidden")));
}

#[tokio::test]
async fn influxdb_credentials_work_on_the_influxdb_paths_only() {
    let server = Server::start(all_scopes()).await;
    let token = secret_of("writer");
    let basic = |user: &str| format!("Basic {}", STANDARD.encode(format!("{user}:{token}")));
    let body = reading("d", 1.0).to_string();
    for shown in [format!("Token {token}"), format!("Token ann:{token}"), basic("ann"), basic("")] {
        for path in ["/write", "/api/v2/write", "/api/v3/write_lp"] {
            let answer = with_header(&server, Method::POST, path, &shown, LINE).await;
            assert_eq!(answer.status, 204, "{path} {}", answer.text());
        }
        let answer = with_header(&server, Method::POST, "/v1/readings", &shown, &body).await;
        refused(&answer, 401, "unauthorized");
        assert!(answer.json()["detail"].as_str().expect("a text").contains("Bearer"), "{}", answer.text());
    }
    let user_is_no_token = format!("Basic {}", STANDARD.encode(format!("{token}:secret")));
    assert_eq!(with_header(&server, Method::POST, "/write", &user_is_no_token, LINE).await.status, 401);
}

#[tokio::test]
async fn readings_of_refused_requests_count_as_rejected() {
    let server = Server::start(all_scopes()).await;
    ingest(&server, "reader", &reading("d", 1.0)).await;
    server.ingest(&reading("d", 1.0)).await;
    server.post("/v1/readings", "application/senml+json", "[]").await;
    server.post("/write", "text/plain", LINE).await;
    get(&server, "writer", "/v1/devices").await;
    let metrics = server.metrics().await;
    let rejected = |protocol, reason| {
        metrics.count_where("tidegauge_readings_rejected_total", &[("protocol", protocol), ("reason", reason)])
    };
    assert_eq!((rejected("http", "forbidden"), rejected("http", "unauthorized")), (1, 1));
    assert_eq!((rejected("senml", "forbidden"), rejected("senml", "unauthorized")), (0, 1));
    assert_eq!((rejected("influx", "forbidden"), rejected("influx", "unauthorized")), (0, 1));
    assert_eq!(metrics.count("tidegauge_readings_received_total"), 4);
}

#[tokio::test]
async fn health_is_public_and_metrics_only_if_configured() {
    let server = Server::start(all_scopes()).await;
    for path in ["/healthz", "/readyz", "/ping", "/health"] {
        for request in [server.request(Method::GET, path), server.request(Method::GET, path).bearer_auth("wrong")] {
            let answer = server.send(request).await;
            assert!(answer.status < 300, "{path}: {}", answer.status);
            assert!(!answer.text().contains(env!("CARGO_PKG_VERSION")), "{path}: {}", answer.text());
        }
    }
    refused(&server.get("/metrics").await, 401, "unauthorized");
    refused(&server.get("/version").await, 401, "unauthorized");
    for name in ["writer", "reader", "operator"] {
        assert_eq!(get(&server, name, "/version").await.status, 200, "{name}");
    }
    assert_eq!(get(&server, "operator", "/health").await.json()["version"], env!("CARGO_PKG_VERSION"));

    let policy = all_scopes().set("auth.metrics", "open").set("auth.health", "admin");
    let server = Server::start(policy).await;
    assert_eq!(server.get("/metrics").await.status, 200);
    for path in ["/healthz", "/readyz", "/ping", "/health"] {
        assert_eq!(server.get(path).await.status, 401, "{path}");
        assert_eq!(get(&server, "writer", path).await.status, 403, "{path}");
        assert!(get(&server, "operator", path).await.status < 300, "{path}");
    }
}

#[tokio::test]
async fn an_expired_token_is_refused_and_its_successor_accepted() {
    let old = setup().token("gateway", "scopes = ['query']\nexpires = 2020-01-01T00:00:00Z");
    let both = old.token("next", "name = 'gateway'\nscopes = ['query']\nexpires = 2100-01-01T00:00:00Z");
    let server = Server::start(both).await;
    let expired = get(&server, "gateway", "/v1/devices").await;
    refused(&expired, 401, "unauthorized");
    assert_eq!(expired.json()["detail"], "the token has expired");
    assert_eq!(get(&server, "next", "/v1/devices").await.status, 200);
}

#[tokio::test]
async fn without_tokens_on_loopback_all_requests_are_allowed() {
    let server = Server::start(Setup::sqlite()).await;
    assert_eq!(server.ingest(&reading("d", 1.0)).await.status, 200);
    for path in ["/v1/devices", "/metrics", "/version"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
        assert_eq!(get(&server, "anybody", path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_bad_token_is_refused_with_anonymous_access_too() {
    let server = Server::start(all_scopes().set("auth.allow_anonymous", true)).await;
    assert_eq!(server.ingest(&reading("d", 1.0)).await.status, 200);
    refused(&ingest(&server, "unknown", &reading("d", 1.0)).await, 401, "unauthorized");
    refused(&ingest(&server, "reader", &reading("d", 1.0)).await, 403, "forbidden");
}

#[tokio::test]
async fn a_public_address_needs_tokens_or_anonymous_access() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let data = folder.path().to_str().expect("UTF-8");
    let finished = run(&["serve", "--http", "0.0.0.0:0", "--udp", "off", "--data-dir", data]).await;
    assert_eq!(finished.code, Some(64), "{finished:?}");
    for way_out in ["tidegauge token new", "auth.allow_anonymous = true"] {
        assert!(finished.stderr.contains(way_out), "{finished:?}");
    }
    let config = folder.path().join("tidegauge.toml");
    std::fs::write(&config, all_scopes().to_toml()).expect("the folder is writable");
    let config = config.to_str().expect("UTF-8");
    let both = ["serve", "--config", config, "--http", "127.0.0.1:0", "--udp", "0.0.0.0:0", "--data-dir", data];
    let finished = run(&both).await;
    assert_eq!(finished.code, Some(64), "{finished:?}");
    for way_out in ["udp.listen = \"off\"", "auth.allow_anonymous = true"] {
        assert!(finished.stderr.contains(way_out), "{finished:?}");
    }
}
