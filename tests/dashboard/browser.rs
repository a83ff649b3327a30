//! A headless Chromium for all tests of the dashboard, controlled through its `DevTools` protocol.
//!
//! The protocol goes through a pair of pipes (`--remote-debugging-pipe`), so it needs no driver and no port.
//! Each [`Tab`] has storage and a cache of its own.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::harness::mongod::deadline::deadline;
use crate::harness::mongod::kill_on_exit::KillOnExit;
use crate::harness::{fetched, wait_until};

/// How many seconds an expression may take to become true.
///
/// On a busy machine, a page waits for up to a minute before it asks the server again.
const SECONDS: u32 = 180;

/// The browser, which ends with this process.
struct Browser {
    commands: Mutex<(u64, ChildStdin)>,
    received: Arc<Mutex<Received>>,
    _process: Child,
    _kill_on_exit: KillOnExit,
}

/// Messages of the browser: the answers that a command waits for, and the events of each tab.
#[derive(Default)]
struct Received {
    waiting: HashMap<u64, oneshot::Sender<Value>>,
    events: HashMap<String, Vec<Value>>,
}

fn browser() -> &'static Browser {
    static BROWSER: OnceLock<Browser> = OnceLock::new();
    BROWSER.get_or_init(Browser::start)
}

impl Browser {
    fn start() -> Self {
        let profile = tempfile::tempdir().expect("a temporary folder").keep(); // the guard removes it
        // Chromium reads commands from descriptor 3, and writes to 4.
        let mut child = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null"#, "sh"])
            .arg(fetched("get-chromium"))
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"])
            .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
            .arg(format!("--user-data-dir={}", profile.display()))
            .args(["--remote-debugging-pipe", "about:blank"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh is there");
        let kill_on_exit = KillOnExit::new(&child, &profile);
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let received = Arc::<Mutex<Received>>::default();
        let reader = Arc::clone(&received);
        std::thread::spawn(move || receive(stdout, &reader));
        Self { commands: Mutex::new((0, stdin)), received, _process: child, _kill_on_exit: kill_on_exit }
    }

    /// Sends a command and waits for its result.
    async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Value {
        let (send, answer) = oneshot::channel();
        {
            let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
            commands.0 += 1;
            let id = commands.0;
            lock(&self.received).waiting.insert(id, send);
            let mut command = json!({ "id": id, "method": method, "params": params });
            if let Some(session) = session {
                command["sessionId"] = session.into();
            }
            commands.1.write_all(format!("{command}\0").as_bytes()).expect("the browser reads");
        }
        let mut answer = answer.await.unwrap_or_else(|_| panic!("the browser has ended before {method}"));
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].take()
    }
}

fn receive(stdout: ChildStdout, received: &Mutex<Received>) {
    for message in BufReader::new(stdout).split(0).map_while(Result::ok) {
        let message: Value = serde_json::from_slice(&message).expect("JSON");
        let mut received = lock(received);
        if let Some(waiting) = message["id"].as_u64().and_then(|id| received.waiting.remove(&id)) {
            drop(waiting.send(message)); // a test that has failed waits no more
        } else if let Some(events) = message["sessionId"].as_str().and_then(|tab| received.events.get_mut(tab)) {
            events.push(message);
        }
    }
    lock(received).waiting.clear();
}

fn lock(received: &Mutex<Received>) -> std::sync::MutexGuard<'_, Received> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A tab of the browser, which is closed when the test calls [`Tab::close`] or the process ends.
pub(super) struct Tab {
    session: String,
    context: String,
}

impl Tab {
    /// Opens an empty tab, 1,280 pixels wide.
    pub(super) async fn open() -> Self {
        let browser = browser();
        let context = browser.call(None, "Target.createBrowserContext", json!({})).await;
        let context = context["browserContextId"].as_str().expect("an ID").to_owned();
        let target = json!({ "url": "about:blank", "browserContextId": context });
        let target = browser.call(None, "Target.createTarget", target).await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call(None, "Target.attachToTarget", attach).await;
        let session = attached["sessionId"].as_str().expect("an ID").to_owned();
        lock(&browser.received).events.insert(session.clone(), Vec::new());
        let tab = Self { session, context };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            tab.call(&format!("{domain}.enable"), json!({})).await;
        }
        tab.call("Emulation.setTimezoneOverride", json!({ "timezoneId": "Europe/Vienna" })).await;
        tab.call("Emulation.setLocaleOverride", json!({ "locale": "en-US" })).await;
        tab.size(1_280).await;
        tab
    }

    /// Closes the tab. Fails if the page logged an error that is not in `expected`, threw an exception, or
    /// sent a request to anything but `origin`.
    pub(super) async fn close(self, origin: &str, expected: &[&str]) {
        let browser = browser();
        let events = lock(&browser.received).events.remove(&self.session).unwrap_or_default();
        let problems: Vec<String> = events.iter().filter_map(|event| problem(event, origin)).collect();
        let is_expected = |problem: &&String| !expected.iter().any(|known| problem.contains(known));
        let unexpected: Vec<&String> = problems.iter().filter(is_expected).collect();
        assert!(unexpected.is_empty(), "{unexpected:#?}");
        let context = json!({ "browserContextId": self.context });
        browser.call(None, "Target.disposeBrowserContext", context).await;
    }

    /// Sends a command for this tab.
    pub(super) async fn call(&self, method: &str, params: Value) -> Value {
        browser().call(Some(&self.session), method, params).await
    }

    /// Shows an address.
    pub(super) async fn go(&self, url: &str) {
        self.call("Page.navigate", json!({ "url": url })).await;
    }

    /// The value of an expression of JavaScript.
    pub(super) async fn js(&self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", params).await;
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(super) async fn wait(&self, expression: &str) {
        let truth = format!("Promise.resolve({expression}).then(Boolean)");
        let found = tokio::time::timeout(
            deadline(SECONDS),
            wait_until(expression, async || (self.js(&truth).await == true).then_some(())),
        );
        if found.await.is_err() {
            let text = self.js("location.hash + '\\n' + document.body.innerText").await;
            panic!("waited without success: {expression}\n{}", text.as_str().unwrap_or_default());
        }
    }

    /// Waits until an element that a selector names contains a text.
    pub(super) async fn wait_for(&self, selector: &str, text: &str) {
        let (selector, text) = (Value::from(selector), Value::from(text));
        self.wait(&format!("document.querySelector({selector})?.textContent.includes({text})")).await;
    }

    /// The text of the first element that a selector names.
    pub(super) async fn text(&self, selector: &str) -> String {
        let text = self.js(&format!("document.querySelector({}).innerText", Value::from(selector))).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks on the middle of an element with the mouse, when it stands still and nothing covers it.
    pub(super) async fn click(&self, selector: &str) {
        self.wait(&can_be_clicked(selector)).await;
        let (x, y) = self.middle(selector).await;
        self.mouse("mouseMoved", x, y).await;
        self.mouse("mousePressed", x, y).await;
        self.mouse("mouseReleased", x, y).await;
    }

    /// The middle of an element, which is scrolled into view.
    pub(super) async fn middle(&self, selector: &str) -> (f64, f64) {
        let script = format!(
            "(() => {{ const found = document.querySelector({}); found.scrollIntoView({{ block: 'center' }}); \
             const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()",
            Value::from(selector)
        );
        let middle = self.js(&script).await;
        (middle[0].as_f64().expect("a number"), middle[1].as_f64().expect("a number"))
    }

    /// Sends an event of the mouse, with the left button.
    pub(super) async fn mouse(&self, kind: &str, x: f64, y: f64) {
        let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", event).await;
    }

    /// Types a text into the focused element.
    pub(super) async fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({ "text": text })).await;
    }

    /// Presses a key, such as `Tab`, `Enter`, `ArrowLeft` or `+`.
    pub(super) async fn press(&self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            " " => (32, " "),
            _ if key.len() == 1 => (0, key),
            _ => (0, ""),
        };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Sets the width of the view, and waits until the page has it.
    pub(super) async fn size(&self, width: u32) {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        self.wait(&format!("innerWidth === {width}")).await;
    }

    /// Chooses the dark or the light colours.
    pub(super) async fn dark(&self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    /// Checks the page light, dark and on a phone: nothing is wider than the screen, axe-core finds nothing.
    ///
    /// With `SCREENSHOTS=folder` in the environment it also saves pictures there.
    pub(super) async fn check(&self, state: &str) {
        if self.js("window.axe === undefined").await == true {
            self.js(axe()).await; // the page's policy does not apply to it
        }
        for (form, width, is_dark) in [("light", 1_280, false), ("dark", 1_280, true), ("phone", 360, true)] {
            self.size(width).await;
            self.dark(is_dark).await;
            let scrolled = self.js("document.documentElement.scrollWidth").await;
            assert_eq!(scrolled, width, "{state}, {form}: wider than the screen");
            let found = self.js(AXE_RUN).await;
            assert_eq!(found, json!([]), "{state}, {form}: {found:#}");
            self.save_picture(&format!("{state}-{form}")).await;
        }
        self.size(1_280).await;
        self.dark(false).await;
    }

    async fn save_picture(&self, name: &str) {
        let Some(folder) = std::env::var_os("SCREENSHOTS") else { return };
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" })).await;
        let png = STANDARD.decode(picture["data"].as_str().expect("base64")).expect("base64");
        std::fs::write(std::path::Path::new(&folder).join(format!("{name}.png")), png).expect("the folder is writable");
    }
}

/// The expression of whether an element, scrolled into view, has the same place in two frames, and is what a
/// click on its middle meets.
fn can_be_clicked(selector: &str) -> String {
    let script = "(async (selector) => {
        const found = document.querySelector(selector);
        found?.scrollIntoView({ block: 'center' });
        if (!found?.getClientRects().length) return false;
        const frame = () => new Promise(requestAnimationFrame);
        const middle = () => {
            const { x, y, width, height } = found.getBoundingClientRect();
            return [x + width / 2, y + height / 2];
        };
        await frame();
        const before = middle();
        await frame();
        const now = middle();
        return String(now) === String(before) && found.contains(document.elementFromPoint(...now));
    })";
    format!("{script}({})", Value::from(selector))
}

/// Runs axe-core. Colours are checked without transitions, whose middles would have other contrasts.
const AXE_RUN: &str = "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations.map(\
     ({ id, nodes }) => ({ id, nodes: nodes.map(({ html, failureSummary }) => [html, failureSummary]) })))";

/// The source of axe-core.
fn axe() -> &'static str {
    static AXE: OnceLock<String> = OnceLock::new();
    AXE.get_or_init(|| {
        let source = std::fs::read_to_string(fetched("get axe")).expect("the script");
        format!("{source}; undefined")
    })
}

/// The problem of the page that an event shows.
fn problem(event: &Value, origin: &str) -> Option<String> {
    let params = &event["params"];
    match event["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
        "Runtime.consoleAPICalled" if params["type"] == "error" => Some(params["args"].to_string()),
        "Log.entryAdded" if params["entry"]["level"] == "error" => Some(params["entry"].to_string()),
        "Network.requestWillBeSent" => {
            let url = params["request"]["url"].as_str()?;
            let is_own = url.starts_with(origin) || ["blob:", "data:", "about:"].iter().any(|own| url.starts_with(own));
            (!is_own).then(|| format!("a request to {url}"))
        }
        _ => None,
    }
}
