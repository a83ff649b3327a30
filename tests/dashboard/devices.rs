//! The list of devices: search, filters, pages, ages, and the keyboard.

use serde_json::{Map, Value, json};

use super::browser::Tab;
use super::{send, send_now};
use crate::harness::{Server, Setup, now_ms, secret_of};

/// Starts a server with 60 devices, of which `OLD-7` is silent, and `AHEAD` has a wrong clock.
async fn server_with_devices() -> Server {
    let server = Server::start(Setup::sqlite()).await;
    let device = |number: u32| {
        let metadata = json!({ "floor": number % 3, "at": { "city": if number < 30 { "Graz" } else { "Linz" } } });
        json!({ "deviceId": format!("D-{number:02}"), "metadata": metadata, "values": { "temp": number } })
    };
    let mut readings: Vec<Value> = (0..58).map(device).collect();
    readings.push(json!({ "deviceId": "OLD-7", "ageMs": 7_200_000, "values": { "temp{unit=C}": 7.5 } }));
    readings.push(json!({ "deviceId": "AHEAD", "ts": now_ms() + 240_000, "values": { "temp": 0 } }));
    server.accepts(&Value::Array(readings)).await;
    server
}

async fn listed(tab: &Tab) -> Vec<String> {
    let rows = tab.js("[...document.querySelectorAll('tr[data-device]')].map((row) => row.dataset.device)").await;
    rows.as_array().expect("a list").iter().map(|id| id.as_str().expect("an ID").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_are_searched_filtered_paged_and_compared() {
    let server = server_with_devices().await;
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait_for("tr[data-device='D-07'] .values", "temp 7").await;
    assert_eq!(listed(&tab).await.len(), 50);
    tab.wait_for("tr[data-device='AHEAD'] .age", "clock ahead").await;
    tab.check("devices").await;
    tab.click("[data-key=next]").await;
    tab.wait_for("tr[data-device='OLD-7'] .age", "silent").await;
    tab.wait_for("tr[data-device='OLD-7'] .values", "temp 7.5 C").await;
    assert_eq!(tab.text("tr[data-device='OLD-7'] time").await, "2 h ago");
    tab.click("[data-key=back]").await;
    tab.wait("document.querySelector('tr[data-device=\"D-00\"]')").await;

    tab.js("document.querySelector('input[type=search]').focus()").await;
    tab.type_text("D-0").await;
    tab.wait("document.querySelectorAll('tr[data-device]').length === 10").await;
    assert!(tab.js("location.hash").await.as_str().is_some_and(|hash| hash.contains("prefix=D-0")));
    tab.js("document.querySelector('[aria-label^=Key]').focus()").await;
    tab.type_text("at.city").await;
    tab.js("document.querySelector('[aria-label^=Value]').focus()").await;
    tab.type_text("L*").await;
    tab.press("Enter").await;
    tab.wait_for("[data-state=nothing]", "No device matches").await;
    tab.check("no-match").await;
    tab.click("[data-state=nothing] [data-key=clear]").await;
    tab.wait("document.querySelectorAll('tr[data-device]').length === 50").await;
    tab.click("[data-key='meta D-02 floor']").await;
    tab.wait("document.querySelectorAll('tr[data-device]').length === 19").await;
    assert!(listed(&tab).await.iter().all(|id| id[2..].parse::<u32>().expect("a number") % 3 == 2));
    tab.wait_for(".chips", "floor is 2").await;
    tab.click("[aria-label='Remove the filter floor is 2']").await;
    tab.wait("document.querySelectorAll('tr[data-device]').length === 50").await;
    tab.click(".silent-tools input").await;
    tab.wait("document.querySelectorAll('tr[data-device]').length === 1").await;
    assert_eq!(listed(&tab).await, ["OLD-7"]);

    tab.go(&format!("{}/#/devices?prefix=D-0", server.url())).await;
    tab.wait("document.querySelectorAll('tr[data-device]').length === 10").await;
    for id in ["D-01", "D-04"] {
        tab.click(&format!("[data-key='select {id}']")).await;
    }
    tab.click("[data-key=compare]").await;
    tab.wait_for(".chart .legend", "D-04").await;
    assert_eq!(tab.text("h1").await, "2 devices");
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_lower_limits_pages_are_shorter_and_few_readings_become_steps() {
    let setup = Setup::sqlite().set("query.max_devices", 1);
    let server = Server::start(setup.set("query.max_readings", 2).set("query.default_readings", 2)).await;
    send(&server, "A", "temp", &[(0, 1.0), (10, 2.0), (20, 6.0)]).await;
    send_now(&server, "A", 7.0).await;
    send_now(&server, "B", 8.0).await;
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait_for("tr[data-device=A] .values", "temp 7").await;
    assert_eq!(listed(&tab).await, ["A"]);
    tab.click("[data-key=next]").await;
    tab.wait_for("tr[data-device=B] .values", "temp 8").await;
    let range = "from=2024-04-20T14:00:00Z&to=2024-04-20T14:01:00Z";
    tab.go(&format!("{}/#/chart?device=A&{range}&table=1", server.url())).await;
    tab.wait_for(".data tbody", "3 (1 … 6)").await;
    tab.close(server.url(), &["status of 400"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_beyond_their_limits_are_marked() {
    let server = Server::start(Setup::sqlite()).await;
    let limits = json!({ "level": { "min": 20 }, "temp": { "max": 80 }, "typo": { "hihg": 1 } });
    let newer = json!({ "ageMs": 1_000, "values": { "a": 1, "b": 1, "c": 1, "d": 1 } });
    let readings = json!([{ "ageMs": 60_000, "values": { "level": 12.5, "temp": 20 } }, newer]);
    server.accepts(&json!({ "deviceId": "TANK", "metadata": { "limits": limits }, "readings": readings })).await;
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait_for("tr[data-device] .values .beyond", "level 12.5low").await;
    let marked =
        tab.js("[...document.querySelectorAll('.beyond')].map((value) => value.title.split(', ').slice(-2))").await;
    assert_eq!(marked, json!([["below its limit", "20"]]));
    let shown = tab.text("tr[data-device] .meta").await;
    assert!(shown.contains("typo") && !shown.contains("level"), "limits that are not understood stay: {shown}");
    tab.check("limits").await;
    send_now(&server, "WITHIN", 1.0).await;
    tab.wait("document.querySelectorAll('tr[data-device]').length === 2").await;
    tab.click(".silent-tools label:last-child input").await;
    tab.wait("document.querySelectorAll('tr[data-device]').length === 1").await;
    assert_eq!(
        (listed(&tab).await, tab.js("location.hash").await),
        (vec!["TANK".to_owned()], json!("#/devices?beyond=limits"))
    );
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_have_a_line_of_the_last_day() {
    let server = Server::start(Setup::sqlite()).await;
    let values = [(22, 1.0), (12, 5.0), (1, 3.0)];
    let reading = |(hours, value): (i64, f64)| json!({ "ageMs": hours * 3_600_000, "values": { "temp": value } });
    let readings: Vec<Value> = values.into_iter().map(reading).collect();
    let answer = server
        .ingest(&json!([{ "deviceId": "A", "readings": readings },
                                       { "deviceId": "B", "values": { "temp": 1 } }]))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait("document.querySelector('tr[data-device=A] .spark polyline')").await;
    let points = "[...document.querySelector('.spark polyline').points].map(({ y }) => y)";
    assert_eq!(tab.js(points).await, json!([13, 1, 7]), "the least is at the bottom, the greatest at the top");
    let ascends = "[...document.querySelector('.spark polyline').points].map(({ x }) => x)";
    let ascends = tab.js(&format!("{ascends}.every((x, at, all) => at === 0 || x > all[at - 1])")).await;
    assert_eq!(ascends, true);
    assert_eq!(tab.js("document.querySelectorAll('.spark').length").await, 1, "one value is no line");
    tab.check("sparklines").await;
    tab.close(server.url(), &[]).await;
}

/// Each list of these devices ends a page after the second one: two have more than 2 MiB of series, and three
/// have more than `query.max_points`.
#[tokio::test(flavor = "multi_thread")]
async fn all_devices_have_values_lines_and_charts_if_pages_end_early() {
    let setup = Setup::sqlite().set("limits.device_metrics_per_hour", 0).set("query.max_points", 4_300);
    let server = Server::start(setup.set("ingest.max_metrics_per_reading", 4_096)).await;
    for device in ["A", "B", "C"] {
        let long = (0..2_100).map(|nth| (format!("m{{l={nth:0480}}}"), json!(1)));
        let first: Map<String, Value> = long.chain([("t".to_owned(), json!(1))]).collect();
        let readings = json!([{ "ageMs": 7_260_000, "values": first }, { "ageMs": 60_000, "values": { "t": 2 } }]);
        server.accepts(&json!({ "deviceId": device, "readings": readings })).await;
    }
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait_for("tr[data-device=C] .values", "t 2").await;
    tab.wait("document.querySelector('tr[data-device=C] .spark')").await;
    tab.go(&format!("{}/#/chart?device=A&device=B&device=C&metric=t", server.url())).await;
    tab.wait_for(".chart .legend", "C").await;
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_has_one_line_and_units_are_with_the_values() {
    let server = Server::start(Setup::sqlite()).await;
    let (long, word) = ("a value that takes its place", "x".repeat(200));
    let flow = format!("flow{{of={word}}}");
    let reading = json!({
        "deviceId": "LIGHT-FL01-ZONE1-OF-THE-HALL",
        "metadata": { "units": { "hum": "%" }, "one": long, "two": word, "three": long, "four": long },
        "values": { "hum": 40, "humidity-of-the-outside-air": 41, flow: 22, "noise": 3 },
    });
    assert_eq!(server.ingest(&reading).await.status, 200);
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait_for("tr[data-device] .values", "hum 40 %").await;
    let height = tab.js("document.querySelector('tr[data-device] th a').offsetHeight").await;
    assert!(height.as_u64().is_some_and(|height| (1..=28).contains(&height)), "{height}");
    assert!(!tab.text("tr[data-device] .meta").await.contains("units"), "the values have the units");
    for width in [1_440, 1_024] {
        tab.size(width).await;
        let right = |selector: &str| format!("document.querySelector('{selector}').getBoundingClientRect().right");
        let is_shown = format!("{} <= {}", right(".age"), right(".list"));
        assert_eq!(tab.js(&is_shown).await, true, "long texts of a device leave room for its age");
    }
    tab.go(&format!("{}/#/chart?device=LIGHT-FL01-ZONE1-OF-THE-HALL", server.url())).await;
    tab.wait("document.querySelector('.metadata dd')").await;
    tab.size(360).await;
    tab.wait("!document.querySelector('.controls').open").await;
    tab.click(".controls summary").await;
    tab.wait("document.querySelector('.metadata').offsetHeight > 0").await;
    assert_eq!(tab.js("document.documentElement.scrollWidth").await, 360);
    tab.go(&format!("{}/#/chart?device=NONE", server.url())).await;
    tab.wait_for("[data-state=unknown]", "No such device").await;
    let said = tab.text("[data-state=unknown]").await;
    assert!(!said.contains("token"), "no token is in use: {said}");
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keyboard_alone_leads_from_the_list_to_a_value() {
    let server = Server::start(Setup::sqlite()).await;
    send_now(&server, "A", 22.5).await;
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait("document.querySelector('tr[data-device] b')").await;
    let focus_on = async |wanted: &str| {
        for _ in 0..60 {
            tab.press("Tab").await;
            let is_there = format!(
                "document.activeElement.matches({}) && document.activeElement.matches(':focus-visible')",
                Value::from(wanted)
            );
            if tab.js(&is_there).await == true {
                return;
            }
        }
        panic!("no tab stop is {wanted}");
    };
    focus_on("[data-key='device A']").await;
    tab.press("Enter").await;
    tab.wait("document.querySelector('.chart canvas')").await;
    focus_on("[data-key='range 1h']").await;
    tab.press("Enter").await;
    tab.wait("document.querySelector('[data-key=\"range 1h\"]').getAttribute('aria-pressed') === 'true'").await;
    assert_eq!(tab.js("document.activeElement.dataset.key").await, "range 1h", "the focus stays");
    focus_on(".plot").await;
    tab.press("End").await;
    let said = tab.js("document.activeElement.getAttribute('aria-valuetext')").await;
    assert!(said.as_str().is_some_and(|said| said.ends_with(": A 22.5")), "{said}");
    focus_on(".data summary").await;
    tab.press("Enter").await;
    tab.wait_for(".data td", "22.5").await;
    tab.close(server.url(), &[]).await;
}

/// The name, the place and the units of a device are set on its page, by a token with the scope for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_gets_a_name_a_place_and_units() {
    let setup = Setup::sqlite()
        .token("operator", "scopes = ['admin', 'ingest', 'query', 'metadata']")
        .token("viewer", "scopes = ['query']");
    let server = Server::start(setup).await;
    let reading = json!({
        "deviceId": "0x00158d0001", "metadata": { "name": "TH01", "units": { "temp": "C", "hum": "%" } },
        "values": { "temp": 21.5, "hum": 40 },
    });
    let request = server.request(reqwest::Method::POST, "/v1/readings").bearer_auth(secret_of("operator"));
    let request = request.header("content-type", "application/json").body(reading.to_string());
    assert_eq!(server.send(request).await.status, 200);
    let open_as = async |token: &str, name: &str| {
        let tab = Tab::open().await;
        tab.go(&format!("{}/#/chart?device=0x00158d0001", server.url())).await;
        tab.wait("document.querySelector('[data-state=token] input')").await;
        tab.js("document.querySelector('[data-state=token] input').focus()").await;
        tab.type_text(&secret_of(token)).await;
        tab.press("Enter").await;
        tab.wait_for("h1", name).await;
        tab.click("[data-key=edit]").await;
        tab
    };
    let viewer = open_as("viewer", "TH01").await;
    viewer.wait_for(".editor", "takes the scope metadata").await;
    viewer.close(server.url(), &["401", "403"]).await;
    let tab = open_as("operator", "TH01").await;
    let hostile = r#"Küche <b>"Fenster"</b> '\ 😀"#;
    for (field, text) in [("edit name", hostile), ("edit place", "Hall 2"), ("edit unit temp", "°C")] {
        tab.wait(&format!("document.querySelector('[data-key=\"{field}\"]')")).await;
        tab.js(&format!("document.querySelector('[data-key=\"{field}\"]').select()")).await;
        tab.js(&format!("document.querySelector('[data-key=\"{field}\"]').focus()")).await;
        tab.type_text(text).await;
    }
    tab.check("editor").await;
    tab.click("[data-key='edit save']").await;
    tab.wait_for("h1", hostile).await;
    tab.wait_for(".metadata", "Hall 2").await;
    let request = server.request(reqwest::Method::GET, "/v1/devices/0x00158d0001/metadata");
    let metadata = server.send(request.bearer_auth(secret_of("operator"))).await.json();
    let expected = json!({ "name": hostile, "place": "Hall 2", "units": { "temp": "°C", "hum": "%" } });
    assert_eq!(metadata["setByOperators"], expected);
    // Another operator is quicker: nothing is overwritten, and the form says so. Then it has what is stored.
    // A page that is hidden does not look for changes.
    tab.wait("document.querySelector('[data-key=\"edit place\"]')?.value === 'Hall 2'").await;
    tab.js("Object.defineProperty(document, 'hidden', { value: true, configurable: true }).hidden").await;
    let other = open_as("operator", hostile).await;
    for (tab, place) in [(&other, "Hall 3"), (&tab, "Hall 4")] {
        tab.wait("document.querySelector('[data-key=\"edit place\"]')").await;
        tab.js(&format!("document.querySelector('[data-key=\"edit place\"]').value = '{place}'")).await;
        tab.js("document.querySelector('.editor form').requestSubmit()").await;
        if place == "Hall 3" {
            tab.wait_for(".metadata", "Hall 3").await;
        }
    }
    tab.wait_for(".editor [role=status]", "this device was changed elsewhere").await;
    tab.click("[data-key='edit reload']").await;
    tab.wait("document.querySelector('[data-key=\"edit place\"]')?.value === 'Hall 3'").await;
    tab.js("document.querySelector('[data-key=\"edit place\"]').value = 'Hall 4'").await;
    tab.js("document.querySelector('.editor form').requestSubmit()").await;
    tab.wait_for(".metadata", "Hall 4").await;
    other.close(server.url(), &["401"]).await;
    tab.go(&format!("{}/#/devices", server.url())).await;
    tab.wait_for("tr[data-device='0x00158d0001'] th a", hostile).await;
    tab.wait_for("tr[data-device='0x00158d0001'] th .id", "0x00158d0001").await;
    tab.close(server.url(), &["401", "412"]).await;
}

/// Any text that is a device ID is shown, searched, charted, selected and named as it is.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_ids_are_listed_searched_charted_and_named() {
    let server = Server::start(Setup::sqlite()).await;
    let ids = crate::device_ids::ids();
    for (number, id) in ids.iter().enumerate() {
        send_now(&server, id, number as f64).await;
    }
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait("document.querySelectorAll('tr[data-device]').length === 50").await;
    let mut all = listed(&tab).await;
    tab.click("[data-key=next]").await;
    tab.wait(&format!("document.querySelectorAll('tr[data-device]').length === {}", ids.len() - 50)).await;
    all.extend(listed(&tab).await);
    assert_eq!(all, ids);
    tab.wait("document.querySelector('tr[data-device] .values').textContent.includes('temp')").await;

    for id in ["Line 3 / Press", "a\"b'c", "<b>&amp;</b>", "?x=1&y=2#z", "%2F", "a+b", "שלום-12", "a\\b\\"] {
        let quoted = Value::from(id).to_string();
        tab.go(&format!("{}/#/devices", server.url())).await;
        tab.wait("document.querySelectorAll('tr[data-device]').length === 50").await;
        tab.js("document.querySelector('input[type=search]').select()").await;
        tab.type_text(id).await;
        tab.wait(&format!("document.querySelector('tr[data-device]')?.dataset.device === {quoted}")).await;
        tab.js("document.querySelector('tr[data-device] th a').click()").await;
        tab.wait(&format!("document.querySelector('main h1')?.firstChild?.textContent === {quoted}")).await;
        tab.wait("document.querySelector('.chart .legend tbody td')").await;
        let link = tab.js("document.querySelector('.links a').getAttribute('href')").await;
        let file = server.get(link.as_str().expect("a link")).await;
        assert_eq!(csv::Reader::from_reader(&file.body[..]).records().next().expect("a row").expect("CSV")[0], *id);
        tab.js("document.querySelector('details.editor').open = true").await;
        tab.wait("document.querySelector('.editor input')").await;
        tab.js("document.querySelector('.editor input').value = 'Name of it'").await;
        tab.js("document.querySelector('.editor form').requestSubmit()").await;
        tab.wait_for("main h1", "Name of it").await;
        assert_eq!(tab.text("main h1 .id").await, id);
    }
    tab.close(server.url(), &[]).await;
}
