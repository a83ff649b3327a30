//! Empty and bad times: nothing yet, nothing here, no token, no store, no server, a slow one, a wrong clock.

use serde_json::json;

use super::browser::Tab;
use super::front::Front;
use super::{START_MS, send, send_now};
use crate::harness::{Server, Setup, mongod, secret_of};

/// The browser logs each refused or failed request by itself.
const FAILED_REQUEST: &str = "Failed to load resource";

/// Replaces the server for files, and the clock for limits of a minute or more.
///
/// `body` controls the body of the last file. `limits` has the functions that let the limits pass. `saved` is
/// the address of the file that the page has saved.
const SLOW_FILES: &str = r#"(() => {
    const [ask, start, stop] = [fetch, setTimeout, clearTimeout];
    let last = 0;
    window.limits = new Map();
    const limit = (pass) => { limits.set(--last, pass); return last; };
    window.setTimeout = (pass, ms, ...rest) => (ms >= 60_000 ? limit(pass) : start(pass, ms, ...rest));
    window.clearTimeout = (id) => { if (!limits.delete(id)) stop(id); };
    AbortSignal.timeout = () => {
        const controller = new AbortController();
        limit(() => controller.abort(new DOMException("", "TimeoutError")));
        return controller.signal;
    };
    window.fetch = async (path, options) => {
        if (!path.includes("format=csv")) return ask(path, options);
        return new Response(new ReadableStream({ start: (body) => {
            window.body = body;
            options.signal.addEventListener("abort", () => body.error(options.signal.reason));
        } }));
    };
    HTMLAnchorElement.prototype.click = function () { window.saved = this.href; };
})()"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_first_device_appears_by_the_command_that_the_page_shows() {
    let server = Server::start(Setup::sqlite()).await;
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait_for("[data-state=empty]", "No device yet").await;
    tab.check("empty").await;
    tab.js("navigator.clipboard.writeText = async (text) => { window.copied = text; }").await;
    tab.click(".copy").await;
    tab.wait("window.copied").await;
    let command = tab.js("window.copied").await;
    let command = command.as_str().expect("a text").replace("--json", "-H 'Content-Type: application/json' -d");
    assert!(command.contains(server.url()), "{command}");
    let done = std::process::Command::new("sh").args(["-c", &command]).output().expect("sh is there");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "{\"accepted\":1}");
    tab.wait_for("tr[data-device='S1'] .values", "temp 22.4").await;
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_without_readings_leads_to_the_last_ones() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "A", "temp", &[(0, 21.5)]).await;
    let tab = Tab::open().await;
    tab.go(&format!("{}/#/chart?device=A&range=1h", server.url())).await;
    tab.wait_for("[data-state=nothing]", "The last reading is from 04/20/2024, 04:00:00 PM").await;
    tab.check("nothing").await;
    tab.click("[data-key=to-last]").await;
    tab.wait_for(".legend", "21.5").await;
    tab.go(&format!("{}/#/chart?device=B", server.url())).await;
    tab.wait_for("[data-state=unknown]", "No such device").await;
    tab.check("unknown").await;
    tab.go(&format!("{}/#/chart?device=A&device=B&from=2024-04-20T14:00:00Z&to=2024-04-20T15:00:00Z", server.url()))
        .await;
    tab.wait_for(".notice", "There are no readings of B").await;
    tab.wait_for(".legend", "21.5").await;
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_asked_for_kept_for_the_tab_and_limits_what_is_shown() {
    let setup = Setup::sqlite().token("operator", "scopes = ['admin', 'query', 'ingest']");
    let setup = setup.token("reader", "scopes = ['query']\ndevices = ['A*']").token("writer", "scopes = ['ingest']");
    let server = Server::start(setup).await;
    for device in ["A1", "B1"] {
        let reading = json!({ "deviceId": device, "values": { "temp": 20 } });
        let request = server.request(reqwest::Method::POST, "/v1/readings").bearer_auth(secret_of("operator"));
        let request = request.header("content-type", "application/json").body(reading.to_string());
        assert_eq!(server.send(request).await.status, 200);
    }
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait("document.activeElement?.id === 'token'").await;
    assert!(!tab.text("main").await.contains("refused"));
    tab.check("token").await;
    let enter = async |text: &str| {
        tab.js("document.querySelector('#token').focus()").await;
        tab.type_text(text).await;
        tab.press("Enter").await;
    };
    enter("wrong").await;
    tab.wait_for("[role=alert]", "The server refused the token").await;
    tab.check("token-refused").await;
    enter(&secret_of("writer")).await;
    tab.wait_for("[data-state=forbidden]", "the token lacks the scope").await;
    tab.check("forbidden").await;
    tab.click("#forget").await;
    tab.wait("document.querySelector('#token')").await;
    enter(&secret_of("reader")).await;
    tab.wait("document.querySelector('tr[data-device=\"A1\"]')").await;
    assert_eq!(tab.js("document.querySelectorAll('tr[data-device]').length").await, 1, "only what it covers");
    assert_eq!(tab.js("document.querySelector('nav a[data-view=service]').hidden").await, true);
    tab.js("location.reload()").await;
    tab.wait("document.querySelector('tr[data-device=\"A1\"] b')").await;
    assert_eq!(tab.js("[localStorage.length, document.cookie]").await, json!([0, ""]));
    tab.go(&format!("{}/#/service", server.url())).await;
    tab.wait_for("[data-state=forbidden]", "lacks the scope").await;
    tab.click("#forget").await;
    tab.wait("document.querySelector('#token')").await;
    enter(&secret_of("operator")).await;
    tab.wait_for("[data-figure=store]", "Answers").await;
    tab.wait("!document.querySelector('nav a[data-view=service]').hidden").await;
    tab.close(server.url(), &[FAILED_REQUEST]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_remembered_on_a_device_if_the_viewer_wants_it_and_until_it_is_forgotten() {
    let setup = Setup::sqlite().token("operator", "scopes = ['admin']").token("wall", "scopes = ['query']");
    let server = Server::start(setup).await;
    let tab = Tab::open().await;
    let url = format!("{}/#/devices?wall=1", server.url());
    tab.go(&url).await;
    tab.wait("document.activeElement?.id === 'token'").await;
    tab.click("form.token input[type=checkbox]").await;
    tab.js("document.querySelector('#token').focus()").await;
    tab.type_text(&secret_of("wall")).await;
    tab.press("Enter").await;
    tab.wait_for("[data-state=empty]", "No device yet").await;
    assert_eq!(tab.js("[sessionStorage.length, localStorage.length]").await, json!([0, 1]));
    assert_eq!(tab.js("location.href").await, url, "no address has the token");
    tab.js("sessionStorage.clear()").await;
    tab.go("about:blank").await;
    tab.go(&url).await;
    tab.wait_for("[data-state=empty]", "No device yet").await;
    assert_eq!(tab.js("document.querySelector('#forget').offsetHeight").await, 0, "the wall view has no controls");
    tab.click("#leave").await;
    tab.click("#forget").await;
    tab.wait("document.querySelector('#token')").await;
    assert_eq!(tab.js("[sessionStorage.length, localStorage.length]").await, json!([0, 0]));
    tab.close(server.url(), &[FAILED_REQUEST]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_store_the_page_shows_what_is_pending_and_says_so() {
    let uri = format!("mongodb://127.0.0.1:{}", mongod::free_port());
    let server = Server::start(Setup::sqlite().set("mongodb.uri", uri).set("server.shutdown_grace", "100ms")).await;
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait_for("[data-state=away]", "The store is away").await;
    tab.wait_for("#state", "Store away").await;
    tab.check("away").await;
    send_now(&server, "A", 21.5).await;
    tab.wait_for("tr[data-device='A'] .values", "temp 21.5").await;
    tab.wait_for(".notice", "only readings that are not stored yet").await;
    tab.check("partial").await;
    tab.go(&format!("{}/#/chart?device=A&range=1h", server.url())).await;
    tab.wait_for(".legend", "21.5").await;
    tab.wait_for(".notice", "only readings that are not stored yet").await;
    tab.go(&format!("{}/#/service", server.url())).await;
    tab.wait_for("[data-figure=store]", "Away").await;
    tab.wait_for("main .notice", "the store is away: ").await;
    tab.check("service-away").await;
    tab.close(server.url(), &[FAILED_REQUEST]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_survives_a_slow_server_and_a_restart() {
    let mut server = Server::start(Setup::sqlite()).await;
    send_now(&server, "A", 1.0).await;
    let front = Front::of(&server).await;
    let tab = Tab::open().await;
    tab.go(&format!("{}/#/chart?device=A&range=1h", front.url())).await;
    tab.wait_for(".legend", "1").await;

    server.signal("STOP");
    tab.wait("!document.querySelector('#progress').hidden").await;
    tab.wait_for("#notices", "slow").await;
    tab.check("slow").await;
    server.signal("CONT");
    tab.wait("document.querySelector('#progress').hidden && !document.querySelector('[data-about=slow]')").await;

    assert!(server.terminate().await.success());
    tab.wait_for("#notices", "The server does not answer").await;
    tab.wait_for("#state", "No connection").await;
    assert_eq!(tab.text(".legend tbody .at").await, "1", "the last values stay");
    tab.check("gone").await;
    server.start_again().await;
    front.lead_to(&server);
    tab.wait_for("#state", "Ready").await;
    tab.wait("!document.querySelector('.notice')").await;
    send_now(&server, "A", 2.0).await;
    tab.wait_for(".legend tbody .at", "2").await;
    tab.close(&front.url(), &[FAILED_REQUEST]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ages_and_ranges_count_by_the_clock_of_the_server() {
    let mut server = Server::start_with_clock(Setup::sqlite()).await;
    server.clock().set(-7_200);
    send_now(&server, "A", 1.0).await;
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait_for("#notices", "Your clock is 2 hours ahead of the server's").await;
    send_now(&server, "A", 2.0).await;
    tab.wait_for("tr[data-device] .values", "temp 2").await;
    tab.wait_for("tr[data-device] time", " s ago").await; // by the server's clock
    tab.check("clock").await;
    tab.go(&format!("{}/#/chart?device=A&range=1h", server.url())).await;
    tab.wait_for(".legend", "2").await;
    tab.close(server.url(), &[]).await;
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_becomes_silent_while_its_pages_are_open() {
    let server = Server::start_with_clock(Setup::sqlite()).await;
    send_now(&server, "A", 1.0).await;
    server.settled().await;
    let (list, chart) = (Tab::open().await, Tab::open().await);
    list.go(&format!("{}/", server.url())).await;
    list.wait_for("tr[data-device] .values", "temp 1").await;
    // A range that does not move. So no answer changes any more.
    let range =
        "['from', 'to'].map((name, at) => `&${name}=${new Date(Date.now() + (at - 0.5) * 72e5).toISOString()}`)";
    let range = chart.js(&format!("{range}.join('')")).await;
    chart.go(&format!("{}/#/chart?device=A{}", server.url(), range.as_str().expect("a text"))).await;
    chart.wait("document.querySelector('.chart canvas')").await;
    for tab in [&list, &chart] {
        assert_eq!(tab.js("document.querySelectorAll('main .tag').length").await, 0);
    }
    server.clock().set(7_200);
    list.wait_for("tr[data-device] .age", "silent").await;
    list.wait_for("tr[data-device] .values", "temp 1").await;
    chart.wait_for("h1 .tag", "silent").await;
    list.close(server.url(), &[]).await;
    chart.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_may_take_long_and_its_failure_leaves_the_links() {
    let server = Server::start(Setup::sqlite().token("operator", "scopes = ['admin', 'query', 'ingest']")).await;
    let reading = json!({ "deviceId": "A", "ts": START_MS, "values": { "temp": 20 } });
    let request = server.request(reqwest::Method::POST, "/v1/readings").bearer_auth(secret_of("operator"));
    let request = request.header("content-type", "application/json").body(reading.to_string());
    assert_eq!(server.send(request).await.status, 200);
    let tab = Tab::open().await;
    let range = "from=2024-04-20T14:00:00Z&to=2024-04-20T15:00:00Z";
    tab.go(&format!("{}/#/chart?device=A&{range}", server.url())).await;
    tab.wait("document.activeElement?.id === 'token'").await;
    tab.type_text(&secret_of("operator")).await;
    tab.press("Enter").await;
    tab.wait("document.querySelector('.links a')").await;
    tab.js(SLOW_FILES).await;
    tab.click(".links a").await;
    tab.wait("window.body").await;
    tab.js("[...limits.values()].forEach((pass) => pass())").await;
    tab.js("body.enqueue(new Uint8Array([65])), body.close()").await;
    tab.wait("window.saved?.startsWith('blob:')").await;
    assert_eq!(tab.js("document.querySelectorAll('.card .notice').length").await, 0);

    tab.js("(() => { window.body = undefined; })()").await;
    tab.click(".links a").await;
    tab.wait("window.body").await;
    tab.js("body.error(new TypeError('the connection broke off'))").await;
    tab.wait_for(".card .notice", "The server does not answer. The file readings.csv was not saved.").await;
    assert_eq!(tab.js("document.querySelectorAll('.links a').length").await, 2);
    tab.click("[data-key=out]").await;
    let wider = format!("from={}&", START_MS - 1_800_000);
    tab.wait(&format!("document.querySelector('.links a')?.getAttribute('href').includes('{wider}')")).await;
    assert_eq!(tab.js("document.querySelectorAll('.card .notice').length").await, 0, "it is of the chart before");
    tab.close(server.url(), &[FAILED_REQUEST]).await;
}
