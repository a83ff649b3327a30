//! Charts: the right values, zoom, the cursor, the keyboard, and new readings.

use std::time::{Duration, Instant};

use serde_json::json;

use super::browser::Tab;
use super::{START_MS, send, send_now};
use crate::harness::mongod::deadline::deadline;
use crate::harness::{Server, Setup};

const MINUTE: &str = "from=2024-04-20T14:00:00Z&to=2024-04-20T14:01:00Z";

async fn show(tab: &Tab, url: &str, query: &str) {
    tab.go(&format!("{url}/#/chart?{query}")).await;
    tab.wait("document.querySelector('.chart canvas')").await;
}

/// The cells of the rows of a table, row by row.
async fn cells(tab: &Tab, table: &str) -> serde_json::Value {
    let rows = format!("[...document.querySelectorAll('{table} tbody tr')]");
    tab.js(&format!("{rows}.map((row) => [...row.children].map((cell) => cell.textContent))")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chart_shows_the_values_that_were_sent() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "A", "temp{unit=C}", &[(0, 1.5), (10, 2.25), (20, -0.125)]).await;
    send(&server, "B", "temp{unit=C}", &[(0, 10.0), (10, 20.0), (20, 30.0)]).await;
    send(&server, "A", "dew{unit=C}", &[(0, 7.0)]).await;
    send(&server, "A", "hum", &[(0, 40.0)]).await;
    let tab = Tab::open().await;
    show(&tab, server.url(), &format!("device=A&device=B&{MINUTE}&table=1")).await;
    let charts = tab.js("[...document.querySelectorAll('.card.chart')].map((chart) => chart.dataset.chart)").await;
    assert_eq!(charts, json!(["unit C", "metric hum"]), "one for each unit");
    let expected = json!([
        ["A · dew", "7", "7", "7", "7"],
        ["A · temp", "-0.125", "-0.125", "1.2083", "2.25"],
        ["B · temp", "30", "10", "20", "30"],
        ["A", "40", "40", "40", "40"],
        ["B", "no readings in this range"],
    ]);
    assert_eq!(cells(&tab, ".chart .legend").await, expected);
    let expected = json!([
        ["04/20/2024, 04:00:20 PM", "–", "-0.125", "30"],
        ["04/20/2024, 04:00:10 PM", "–", "2.25", "20"],
        ["04/20/2024, 04:00:00 PM", "7", "1.5", "10"],
        ["04/20/2024, 04:00:00 PM", "40"],
    ]);
    assert_eq!(cells(&tab, ".chart .data").await, expected);

    let over =
        tab.js("(({ x, y, width }) => [x, y, width])(document.querySelector('.u-over').getBoundingClientRect())").await;
    let [x, y, width] = [0, 1, 2].map(|nth| over[nth].as_f64().expect("a number"));
    tab.mouse("mouseMoved", x + width / 6.0 + 3.0, y + 50.0).await;
    tab.wait_for(".legend thead .at", "04/20/2024, 04:00:10 PM").await;
    let at = tab
        .js("[...document.querySelectorAll('.chart:first-child .legend tbody .at')].map((cell) => cell.textContent)")
        .await;
    assert_eq!(at, json!(["–", "2.25", "20"]), "the exact values at the cursor");
    tab.check("chart").await;

    show(&tab, server.url(), &format!("device=A&metric=temp&step=1h&{MINUTE}&table=1")).await;
    tab.wait_for(".data thead", "Step of 1h").await;
    assert_eq!(
        cells(&tab, ".data").await,
        json!([["04/20/2024, 04:00 PM", "1.2083 (-0.125 … 2.25)"]]),
        "mean and band"
    );
    let csv = tab.js("[...document.querySelectorAll('.links a')].map((link) => link.getAttribute('href'))").await;
    for (nth, header) in [(0, "deviceId,ts,series,value\r\n"), (1, "deviceId,ts,series,count,min,max,avg,sum\r\n")] {
        let file = server.get(csv[nth].as_str().expect("a link")).await;
        let text = file.text().strip_prefix('\u{feff}').expect("a byte order mark");
        assert!(text.starts_with(header) && text.contains("A,2024-04-20 16:00:"), "{text}");
        let workbook = server.get(csv[nth + 2].as_str().expect("a link")).await;
        assert!(workbook.header("content-disposition").ends_with(".xlsx\""), "{}", workbook.text());
    }
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_devices_without_readings_in_any_unit_are_said_to_have_none() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "A", "temp{unit=C}", &[(0, 1.0)]).await;
    send(&server, "B", "temp{unit=F}", &[(0, 2.0)]).await;
    send(&server, "C", "hum", &[(0, 3.0)]).await;
    let tab = Tab::open().await;
    show(&tab, server.url(), &format!("device=A&device=B&device=C&metric=temp&{MINUTE}")).await;
    let none = "no readings in this range";
    let expected = json!([["A", "1", "1", "1", "1"], ["C", none], ["B", "2", "2", "2", "2"], ["C", none]]);
    assert_eq!(cells(&tab, ".chart .legend").await, expected);
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_has_its_name_if_no_other_has_it() {
    let server = Server::start(Setup::sqlite()).await;
    for (device, name) in [("A", "Press"), ("B", "Press"), ("C", "Oven"), ("D", "A"), ("E", "")] {
        let reading = json!({ "deviceId": device, "metadata": { "name": name }, "values": { "temp": 1 } });
        server.accepts(&json!([reading])).await;
    }
    let tab = Tab::open().await;
    for (devices, names) in [("device=A&device=C&device=E", "Press,Oven,E"), ("device=A&device=B&device=D", "A,B,D")] {
        show(&tab, server.url(), &format!("{devices}&range=1h")).await;
        let rows = "[...document.querySelectorAll('.legend th[scope=row]')]";
        tab.wait(&format!("{rows}.map((row) => row.textContent).join() === '{names}'")).await;
    }
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn days_are_those_of_the_viewer_and_gaps_stay_empty() {
    let server = Server::start(Setup::sqlite()).await;
    // 23:30 and 00:30 in Vienna are of one day of UTC.
    send(&server, "A", "temp", &[(7 * 3_600 + 1_800, 1.0), (8 * 3_600 + 1_800, 3.0), (80 * 3_600, 5.0)]).await;
    let tab = Tab::open().await;
    let range = "from=2024-04-19T22:00:00Z&to=2024-04-25T22:00:00Z";
    show(&tab, server.url(), &format!("device=A&step=1d&{range}&table=1")).await;
    let expected = json!([
        ["04/24/2024, 12:00 AM", "5 (5 … 5)"],
        ["04/21/2024, 12:00 AM", "3 (3 … 3)"],
        ["04/20/2024, 12:00 AM", "1 (1 … 1)"],
    ]);
    assert_eq!(cells(&tab, ".data").await, expected);
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_has_the_steps_of_its_chart_if_they_follow_utc() {
    let server = Server::start(Setup::sqlite().set("query.max_values_read", 2)).await;
    // In Kolkata midnight is within the hour of UTC that has three values. Steps that begin there need them.
    send(&server, "A", "temp", &[(0, 1.0), (2_400, 2.0), (14_400, 3.0), (16_200, 4.0), (16_800, 5.0)]).await;
    let tab = Tab::open().await;
    tab.call("Emulation.setTimezoneOverride", json!({ "timezoneId": "Asia/Kolkata" })).await;
    let range = "from=2024-04-20T12:00:00Z&to=2024-04-21T00:00:00Z";
    let hours = json!([["04/20/2024, 11:30 PM", "4 (3 … 5)"], ["04/20/2024, 07:30 PM", "1.5 (1 … 2)"]]);
    let half_days = json!([["04/20/2024, 05:30 PM", "3 (1 … 5)"]]);
    for (step, rows, first) in [("1h", hours, "14:00:00.000Z,temp,2,"), ("12h", half_days, "12:00:00.000Z,temp,5,")] {
        show(&tab, server.url(), &format!("device=A&step={step}&{range}&table=1")).await;
        tab.wait_for(".data thead", &format!("Step of {step}")).await;
        assert_eq!(cells(&tab, ".data").await, rows);
        tab.wait_for(".links", &format!("steps of {step} (UTC)")).await;
        let links = tab.js("[...document.querySelectorAll('.links a')].map((link) => link.getAttribute('href'))").await;
        let csv = server.get(links[1].as_str().expect("a link")).await;
        assert!(csv.text().contains(&format!("\nA,2024-04-20T{first}")), "{}", csv.text());
        let workbook = server.get(links[3].as_str().expect("a link")).await;
        assert_eq!(workbook.status, 200, "{}", workbook.text());
    }
    tab.close(server.url(), &["status of 400"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hours_are_those_of_the_viewer_in_a_zone_with_half_an_hour() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "A", "temp", &[(0, 1.0), (2_400, 2.0), (14_400, 3.0), (16_200, 4.0), (16_800, 5.0)]).await;
    let tab = Tab::open().await;
    tab.call("Emulation.setTimezoneOverride", json!({ "timezoneId": "Asia/Kolkata" })).await;
    let range = "from=2024-04-20T12:00:00Z&to=2024-04-21T00:00:00Z";
    show(&tab, server.url(), &format!("device=A&step=1h&{range}&table=1")).await;
    let expected = json!([
        ["04/21/2024, 12:00 AM", "4.5 (4 … 5)"],
        ["04/20/2024, 11:00 PM", "3 (3 … 3)"],
        ["04/20/2024, 08:00 PM", "2 (2 … 2)"],
        ["04/20/2024, 07:00 PM", "1 (1 … 1)"],
    ]);
    assert_eq!(cells(&tab, ".data").await, expected);
    tab.wait_for(".links", "steps of 1h").await;
    let links = tab.js("document.querySelector('.links').textContent").await;
    assert!(!links.as_str().expect("a text").contains("UTC"), "{links}");

    // Over a week they would need all of its readings.
    let range = "from=2024-04-15T00:00:00Z&to=2024-04-22T00:00:00Z";
    show(&tab, server.url(), &format!("device=A&step=1h&{range}&table=1")).await;
    tab.wait_for(".links", "steps of 1h (UTC)").await;
    let expected = json!([["04/20/2024, 11:30 PM", "4 (3 … 5)"], ["04/20/2024, 07:30 PM", "1.5 (1 … 2)"]]);
    assert_eq!(cells(&tab, ".data").await, expected);
    show(&tab, server.url(), &format!("device=A&step=1h&{range}&table=1&compare=-1d")).await;
    tab.wait_for(".legend", "A · a day earlier").await;
    tab.wait_for(".links", "steps of 1h (UTC)").await;
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mouse_and_the_keyboard_zoom_and_the_address_keeps_it() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "A", "temp", &(0..60).map(|at| (at, at as f64)).collect::<Vec<_>>()).await;
    let tab = Tab::open().await;
    show(&tab, server.url(), &format!("device=A&{MINUTE}")).await;
    tab.wait_for(".legend", "29.5").await;

    let (x, y) = tab.middle(".u-over").await;
    tab.mouse("mouseMoved", x - 100.0, y).await;
    tab.mouse("mousePressed", x - 100.0, y).await;
    tab.mouse("mouseMoved", x, y).await;
    tab.mouse("mouseMoved", x + 100.0, y).await;
    tab.mouse("mouseReleased", x + 100.0, y).await;
    tab.wait("new URLSearchParams(location.hash.split('?')[1]).get('from') > '2024-04-20T14:00:1'").await;
    tab.wait("Number(document.querySelector('.legend td:nth-child(3)').textContent) > 10").await;
    let zoomed = tab.js("location.href").await;
    tab.js("history.back()").await;
    tab.wait("document.querySelector('.legend td:nth-child(3)').textContent === '0'").await;
    show(
        &tab,
        zoomed.as_str().expect("a URL").split("/#/chart?").next().expect("a URL"),
        zoomed.as_str().expect("a URL").split('?').nth(1).expect("a query"),
    )
    .await;
    tab.wait("Number(document.querySelector('.legend td:nth-child(3)').textContent) > 10").await;

    show(&tab, server.url(), &format!("device=A&{MINUTE}")).await;
    tab.wait("document.querySelector('.legend td:nth-child(3)').textContent === '0'").await;
    tab.js("document.querySelector('.plot').focus()").await;
    tab.press("Home").await;
    tab.press("ArrowRight").await;
    tab.press("ArrowRight").await;
    let said = tab.js("document.querySelector('.plot').getAttribute('aria-valuetext')").await;
    assert_eq!(said, "04/20/2024, 04:00:02 PM: A 2");
    tab.press("End").await;
    assert_eq!(tab.text(".legend tbody .at").await, "59");
    tab.press("+").await;
    tab.wait("document.querySelector('.legend td:nth-child(3)').textContent === '30'").await;
    tab.press("PageUp").await;
    tab.wait("document.querySelector('.legend td:nth-child(3)').textContent === '15'").await;
    tab.press("-").await;
    tab.wait("document.querySelector('.legend td:nth-child(3)').textContent === '0'").await;
    tab.press("0").await;
    tab.wait("!location.hash.includes('from=')").await;
    tab.wait_for("[data-state=nothing]", "No readings in this range").await;
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_free_range_ends_after_its_beginning() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "A", "temp", &[(0, 1.0)]).await;
    let tab = Tab::open().await;
    show(&tab, server.url(), &format!("device=A&{MINUTE}")).await;
    tab.click("[data-key=free]").await;
    let to = "document.querySelector('[data-key=to]')";
    for (time, said) in [("2024-04-20T15:59", "This must be the later time."), ("2024-04-20T17:00", "")] {
        tab.js(&format!("{to}.value = '{time}'")).await;
        tab.click("[data-key=apply]").await;
        tab.wait(&format!("{to}.validationMessage === '{said}'")).await;
    }
    tab.wait("new URLSearchParams(location.hash.split('?')[1]).get('to') === '2024-04-20T15:00:00.000Z'").await;
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_reading_appears_within_five_seconds() {
    let server = Server::start(Setup::sqlite()).await;
    send_now(&server, "A", 1.0).await;
    let (chart, list) = (Tab::open().await, Tab::open().await);
    show(&chart, server.url(), "device=A&range=1h").await;
    list.go(&format!("{}/", server.url())).await;
    list.wait_for(".values", "temp 1").await;
    let mut fastest = Duration::MAX; // other tests may delay one of them
    for value in [2.5, 3.5, 4.5] {
        send_now(&server, "A", value).await;
        let sent = Instant::now();
        chart.wait_for(".legend tbody .at", &value.to_string()).await;
        list.wait_for(".values", &format!("temp {value}")).await;
        fastest = fastest.min(sent.elapsed());
    }
    assert!(fastest < deadline(5), "{fastest:?}");
    chart.close(server.url(), &[]).await;
    list.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_readings_become_means_with_a_band() {
    let server = Server::start(Setup::sqlite()).await;
    let values: Vec<(i64, f64)> = (0..7_200).map(|at| (at, f64::from(at as i32 % 60))).collect();
    send(&server, "A", "temp", &values).await;
    let tab = Tab::open().await;
    show(&tab, server.url(), "device=A&from=2024-04-20T14:00:00Z&to=2024-04-20T16:00:00Z&table=1").await;
    tab.wait_for(".data thead", "Step of 1m").await;
    tab.wait_for(".data tbody", "29.5 (0 … 59)").await;
    let ms = START_MS + 7_199_000;
    assert_eq!(tab.js(&format!("new Date({ms}).toTimeString().slice(0, 8)")).await, "17:59:59", "the zone of the tab");
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn means_and_totals_of_large_values_have_enough_digits() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "A", "pressure", &[(0, 101_325.4), (10, 101_326.3), (20, 101_327.2)]).await;
    send(&server, "A", "total", &[(0, 0.0), (3_600, 1_234_568.0)]).await;
    let tab = Tab::open().await;
    let hours = "from=2024-04-20T14:00:00Z&to=2024-04-20T16:00:00Z&step=1h&table=1";
    show(&tab, server.url(), &format!("device=A&{hours}&increase=total")).await;
    let expected = json!([
        ["A", "101327.2", "101325.4", "101326.3", "101327.2"],
        ["A 1234568 in all", "1234568", "0", "617284", "1234568"],
    ]);
    assert_eq!(cells(&tab, ".chart .legend").await, expected);
    let expected = json!([
        ["04/20/2024, 04:00 PM", "101326.3 (101325.4 … 101327.2)"],
        ["04/20/2024, 05:00 PM", "1234568"],
        ["04/20/2024, 04:00 PM", "0"],
    ]);
    assert_eq!(cells(&tab, ".chart .data").await, expected);
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_value_is_no_mean_and_a_silent_device_is_not_live() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "A", "temp", &[(0, 1.0), (10, 2.0), (20, 6.0)]).await;
    let tab = Tab::open().await;
    show(&tab, server.url(), &format!("device=A&step=1h&{MINUTE}")).await;
    assert_eq!(cells(&tab, ".chart .legend").await, json!([["A", "6", "1", "3", "6"]]));
    tab.go(&format!("{}/#/chart?device=A&range=1w", server.url())).await;
    tab.wait_for(".zone .tag", "silent").await;
    tab.wait_for("h1 .tag", "silent").await;
    assert_eq!(tab.js("document.querySelectorAll('.zone .live').length").await, 0);
    let place = "document.querySelector('[data-key=\"edit place\"]')";
    tab.click("[data-key=edit]").await;
    tab.wait(place).await;
    tab.js(&format!("{place}.focus()")).await;
    tab.type_text("Hall 2").await;
    send_now(&server, "A", 7.0).await;
    tab.wait_for(".zone .live", "live").await;
    tab.wait("!document.querySelector('h1 .tag')").await;
    assert_eq!(tab.js(&format!("{place}?.value")).await, "Hall 2", "what the viewer types stays");
    let metadata = json!({ "floor": 3, "units": { "hum": "%", "dew": 5 } });
    server.accepts(&json!({ "deviceId": "A", "metadata": metadata, "values": { "hum": 40 } })).await;
    tab.wait_for(".metadata", "floor").await;
    assert_eq!(tab.js(&format!("{place}.value + document.activeElement.dataset.key")).await, "Hall 2edit place");
    tab.js("document.querySelector('[data-key=\"edit unit temp\"]').focus()").await;
    tab.type_text("°C").await;
    tab.press("Enter").await;
    tab.wait_for(".metadata", "Hall 2").await;
    tab.wait_for(".editor [role=status]", "Saved.").await;
    let metadata = server.get_json("/v1/devices/A/metadata").await;
    assert_eq!(metadata["metadata"]["units"], json!({ "hum": "%", "temp": "°C" }));
    let unit = tab.js("document.querySelector('[data-key=\"edit unit hum\"]')?.value").await;
    assert_eq!(unit, "%", "the form has the metrics and units that the device has sent meanwhile");
    tab.js(&format!("{place}.focus()")).await;
    tab.type_text("b").await;
    tab.wait("document.querySelector('.editor [role=status]').textContent === ''").await; // the text is not saved
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shifts_begin_at_the_hour_that_is_chosen() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "A", "temp", &[(-3 * 3_600, 1.0), (0, 3.0), (7 * 3_600, 5.0)]).await; // 13:00, 16:00 and 23:00
    let tab = Tab::open().await;
    let range = "from=2024-04-19T22:00:00Z&to=2024-04-20T22:00:00Z";
    show(&tab, server.url(), &format!("device=A&step=8h&{range}&table=1")).await;
    let days = json!([["04/20/2024, 04:00 PM", "4 (3 … 5)"], ["04/20/2024, 08:00 AM", "1 (1 … 1)"],]);
    assert_eq!(cells(&tab, ".data").await, days);
    let choose = "(() => { const select = document.querySelector('[data-key=offset]'); select.value = '6h'; \
                  select.dispatchEvent(new Event('change')); })()";
    tab.js(choose).await;
    tab.wait_for(".data tbody", "04/20/2024, 10:00 PM").await;
    let shifts = json!([
        ["04/20/2024, 10:00 PM", "5 (5 … 5)"],
        ["04/20/2024, 02:00 PM", "3 (3 … 3)"],
        ["04/20/2024, 06:00 AM", "1 (1 … 1)"],
    ]);
    assert_eq!(cells(&tab, ".data").await, shifts);
    assert_eq!(tab.js("location.hash.includes('offset=6h')").await, true);
    let csv = tab.js("document.querySelector('.links a[download=\"rollups.csv\"]').getAttribute('href')").await;
    let file = server.get(csv.as_str().expect("a link")).await;
    assert!(file.text().contains("A,2024-04-20 22:00:00,temp,1,"), "{}", file.text());
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_german_browser_has_its_numbers_dates_and_files() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "A", "temp", &[(0, 1.5), (10, 2.25)]).await;
    let tab = Tab::open().await;
    tab.call("Emulation.setLocaleOverride", json!({ "locale": "de-DE" })).await;
    show(&tab, server.url(), &format!("device=A&{MINUTE}&table=1")).await;
    tab.wait_for(".legend", "2,25").await;
    let rows = json!([["20.04.2024, 16:00:10", "2,25"], ["20.04.2024, 16:00:00", "1,5"]]);
    assert_eq!(cells(&tab, ".data").await, rows);
    tab.js("document.querySelector('.plot').focus()").await;
    tab.press("Home").await;
    tab.wait_for(".legend thead .at", "20.04.2024, 16:00:00").await;
    assert_eq!(tab.text(".free summary").await, "20.04.2024, 16:00 – 20.04.2024, 16:01");
    let axis = "import(document.querySelector('link[href$=\"time.js\"]').href).then((time) => time.axisTexts";
    let texts = tab.js(&format!("{axis}([{START_MS}], 864e5))")).await;
    assert_eq!(texts, json!(["20. Apr.\n2024"]));
    let texts = tab.js(&format!("{axis}([{START_MS}, {START_MS} + 8 * 36e5], 36e5))")).await;
    assert_eq!(texts, json!(["16:00\n20. Apr.", "00:00\n21. Apr."]));
    let page = "import(document.querySelector('link[href$=\"page.js\"]').href)";
    let numbers = "[page.bytes(1000), page.bytes(2.2e6), page.count(50353), page.tenths(12.34), page.exact(1e300)]";
    let numbers = tab.js(&format!("{page}.then((page) => {numbers})")).await;
    assert_eq!(numbers, json!(["1.000 B", "2,1 MiB", "50.353", "12,3", "1,0000e300"]));
    let csv = tab.js("document.querySelector('.links a').getAttribute('href')").await;
    let file = server.get(csv.as_str().expect("a link")).await;
    assert!(file.text().contains("A;2024-04-20 16:00:10;temp;2,25\r\n"), "{csv}: {}", file.text());
    tab.close(server.url(), &[]).await;

    let swiss = Tab::open().await;
    swiss.call("Emulation.setLocaleOverride", json!({ "locale": "de-CH" })).await;
    show(&swiss, server.url(), &format!("device=A&{MINUTE}")).await;
    let csv = swiss.js("document.querySelector('.links a').getAttribute('href')").await;
    let file = server.get(csv.as_str().expect("a link")).await;
    assert!(file.text().contains("A;2024-04-20 16:00:10;temp;2.25\r\n"), "{csv}: {}", file.text());
    swiss.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chart_is_compared_with_the_day_before() {
    let server = Server::start(Setup::sqlite()).await;
    let day = 86_400;
    send(&server, "A", "temp", &[(-day, 1.0), (-day + 60, 2.0), (0, 5.0), (3_600, 6.0)]).await;
    let counter = [(-day - 3_600, 1.0), (-day, 10.0), (-3_600, 20.0), (0, 24.0)];
    send(&server, "A", "total", &counter).await;
    let tab = Tab::open().await;
    let hours = "from=2024-04-20T14:00:00Z&to=2024-04-20T16:00:00Z&step=1h&table=1";
    show(&tab, server.url(), &format!("device=A&{hours}&metric=temp")).await;
    tab.wait_for(".data tbody", "5 (5 … 5)").await;
    let choose = "(() => { const select = document.querySelector('[data-key=compare]'); select.value = '-1d'; \
                  select.dispatchEvent(new Event('change')); })()";
    tab.js(choose).await;
    tab.wait_for(".legend", "A · a day earlier").await;
    let rows = json!([["04/20/2024, 05:00 PM", "6 (6 … 6)", "–"], ["04/20/2024, 04:00 PM", "5 (5 … 5)", "1.5"]]);
    assert_eq!(cells(&tab, ".data").await, rows);
    let rows = json!([["A", "6", "5", "5.5", "6"], ["A · a day earlier", "2", "1", "1.5", "2"]]);
    assert_eq!(cells(&tab, ".chart .legend").await, rows, "of readings, not of steps");
    assert_eq!(tab.js("location.hash.includes('compare=-1d')").await, true);
    tab.check("compared").await;
    let csv = tab.js("document.querySelector('.links a[download=\"rollups.csv\"]').getAttribute('href')").await;
    let file = server.get(csv.as_str().expect("a link")).await;
    assert!(file.text().contains(",comparedTs,comparedCount,comparedMin,"), "{}", file.text());

    show(&tab, server.url(), &format!("device=A&{hours}&metric=total&increase=total&compare=-1d")).await;
    tab.wait("document.querySelectorAll('.data tbody tr').length === 1").await;
    assert_eq!(cells(&tab, ".data").await, json!([["04/20/2024, 04:00 PM", "4", "9"]]), "beside the bars");
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_has_a_bar_for_the_increase_of_each_step() {
    let server = Server::start(Setup::sqlite()).await;
    let metadata = json!({ "kind": { "energy": "counter" }, "units": { "energy": "kWh" } });
    let reading =
        |(hour, energy): (i64, f64)| json!({ "ts": START_MS + hour * 3_600_000, "values": { "energy": energy } });
    let values = [(0, 100.0), (1, 104.0), (2, 110.0), (3, 3.0), (4, 5.0)]; // the meter is replaced before the fourth
    let body = json!({ "deviceId": "M", "metadata": metadata, "readings": values.map(reading) });
    assert_eq!(server.ingest(&body).await.status, 200);
    let tab = Tab::open().await;
    let range = "from=2024-04-20T14:00:00Z&to=2024-04-20T19:00:00Z";
    show(&tab, server.url(), &format!("device=M&step=1h&{range}&table=1")).await;
    tab.wait_for(".chart h2", "energy kWh increase per 1h").await;
    let bars = json!([
        ["04/20/2024, 08:00 PM", "2"],
        ["04/20/2024, 07:00 PM", "3"],
        ["04/20/2024, 06:00 PM", "6"],
        ["04/20/2024, 05:00 PM", "4"],
        ["04/20/2024, 04:00 PM", "0"],
    ]);
    assert_eq!(cells(&tab, ".data").await, bars);
    assert_eq!(cells(&tab, ".chart .legend").await, json!([["M 15 in all", "2", "0", "3", "6"]]));
    tab.check("bars").await;
    tab.click("[data-key='bars unit kWh']").await;
    tab.wait("!document.querySelector('.chart h2').textContent.includes('increase')").await;
    assert_eq!(cells(&tab, ".chart .legend").await, json!([["M", "5", "3", "64.4", "110"]]));
    tab.click("[data-key='bars unit kWh']").await;
    tab.wait_for(".chart h2", "increase per 1h").await;
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_metric_with_few_readings_that_only_grows_for_a_day_has_bars() {
    let server = Server::start(Setup::sqlite()).await;
    let meter: Vec<(i64, f64)> = (0..96).map(|nth| (nth * 900, 100.0 + nth as f64)).collect();
    send(&server, "M", "energy", &meter).await;
    send(&server, "M", "warmth", &meter[..48]).await;
    let raised: Vec<(i64, f64)> = meter.iter().map(|&(at, _)| (at, if at < 43_200 { 20.0 } else { 21.0 })).collect();
    send(&server, "M", "setpoint", &raised).await;
    let tab = Tab::open().await;
    show(&tab, server.url(), "device=M&from=2024-04-20T14:00:00Z&to=2024-04-21T14:00:00Z").await;
    let titles = tab.js("[...document.querySelectorAll('.chart h2')].map((title) => title.textContent)").await;
    assert_eq!(titles, json!(["energy increase per 30m", "setpoint", "warmth"]));
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_a_line_across_the_chart() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "A", "temp", &[(0, 1.0), (10, 2.0), (20, 6.0)]).await;
    let tab = Tab::open().await;
    show(&tab, server.url(), &format!("device=A&{MINUTE}")).await;
    let red = "(() => {
        const { width, height } = document.querySelector('.chart canvas');
        const { data } = document.querySelector('.chart canvas').getContext('2d').getImageData(0, 0, width, height);
        const isRed = (red, at) => at % 4 === 0 && red > 140 && data[at + 1] < 60 && data[at + 2] < 60;
        return [...data].filter(isRed).length;
    })()";
    assert_eq!(tab.js(red).await, 0);
    let metadata = json!({ "limits": { "temp": { "max": 5 } } });
    let reading = json!({ "deviceId": "A", "ts": START_MS, "metadata": metadata, "values": { "temp": 1 } });
    assert_eq!(server.ingest(&reading).await.status, 200);
    tab.wait(&format!("{red} > 300")).await;
    tab.check("limit").await;
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_phone_the_chart_is_first_and_has_all_its_values() {
    let server = Server::start(Setup::sqlite()).await;
    let long = "a-device-with-a-name-that-is-longer-than-the-screen-of-a-phone";
    for (device, value) in [("A", 6.0), (long, 60.0)] {
        send(&server, device, "temp", &[(0, 1.0), (10, 2.0), (20, value)]).await;
    }
    let tab = Tab::open().await;
    show(&tab, server.url(), &format!("device=A&device={long}&{MINUTE}")).await;
    assert_eq!(tab.js("document.querySelector('.ranges').offsetHeight > 0").await, true, "wide screens show all");
    for width in [360, 390, 414] {
        tab.size(width).await;
        let top = async |selector: &str| {
            let top = tab.js(&format!("document.querySelector('{selector}').getBoundingClientRect().top")).await;
            top.as_f64().expect("a number")
        };
        assert!(top("h1").await < top(".chart canvas").await && top(".chart").await < top(".controls").await);
        assert!(top(".chart canvas").await < 220.0, "the first thing below the title");
        tab.wait("!document.querySelector('.controls').open").await;
        assert_eq!(tab.js("document.documentElement.scrollWidth").await, width);
        let shown = "[...document.querySelectorAll('.legend tbody td')].filter((cell) => cell.offsetHeight > 0)";
        let shown = format!("{shown}.map((cell) => (cell.dataset.name ?? 'Last') + ' ' + cell.textContent)");
        let values = ["Last 6", "Min 1", "Mean 3", "Max 6", "Last 60", "Min 1", "Mean 21", "Max 60"];
        assert_eq!(tab.js(&shown).await, json!(values), "{width}");
    }
    tab.click(".controls summary").await;
    tab.wait("document.querySelector('.ranges').offsetHeight > 0").await;
    tab.check("phone-controls").await;
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_screen_has_the_charts_alone_and_new_readings() {
    let server = Server::start(Setup::sqlite()).await;
    send_now(&server, "A", 1.0).await;
    let tab = Tab::open().await;
    show(&tab, server.url(), "device=A&range=1h").await;
    tab.click("[data-key=wall]").await;
    tab.wait("location.hash.includes('wall=1')").await;
    let shown = "['nav', '.controls', '.links', '.data', '.legend', '.plot'].filter((one) => \
                 document.querySelector(one).offsetHeight > 0)";
    tab.wait(&format!("String({shown}) === '.legend,.plot'")).await;
    tab.wait("document.querySelector('.chart canvas').offsetHeight > 400").await;
    tab.check("wall").await;
    let wall = tab.js("location.href").await;
    tab.go("about:blank").await;
    tab.go(wall.as_str().expect("a URL")).await;
    tab.wait("document.querySelector('.chart canvas')").await;
    assert_eq!(tab.js(shown).await, json!([".legend", ".plot"]), "the address keeps it");
    send_now(&server, "A", 2.5).await;
    tab.wait_for(".legend tbody .at", "2.5").await;
    tab.press("Escape").await;
    tab.wait("!location.hash.includes('wall') && document.querySelector('nav').offsetHeight > 0").await;
    tab.close(server.url(), &[]).await;
}
