// The frame of the page: it shows the view of the address, the state of the connection, and the form for the token.

import { changed, go, href, read } from "./address.js";
import { Failure, connection, getAnyStatus, mayRead, token } from "./api.js";
import { chartView } from "./chart.js";
import { devicesView } from "./devices.js";
import { fill, h } from "./page.js";
import { serviceView } from "./service.js";
import { STATES, notice } from "./states.js";
import { SECOND, clockDifference, inWords, tick } from "./time.js";

const VIEWS = { devices: devicesView, chart: chartView, service: serviceView };
const HEARTBEAT_MS = 5 * SECOND;
const SLOW_MS = 2 * SECOND;
const RETRIES_MS = [500, 1_000, 2_000, 3_000];

// The difference from which on the page says that the viewer's clock is wrong.
const CLOCK_MS = 20 * SECOND;

const main = document.querySelector("#main"), notices = document.querySelector("#notices");
const pill = document.querySelector("#state"), progress = document.querySelector("#progress");
const forget = document.querySelector("#forget"), leave = document.querySelector("#leave");

let current; // { name, query, view }
let service = "unknown"; // whether the token may see the view of the service
let isGone = false, failures = 0, slow, beat;

function route() {
  const { view: name, params } = read();
  const known = VIEWS[name] ? name : "devices";
  document.body.classList.toggle("wall", params.has("wall"));
  leave.hidden = !params.has("wall");
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.dataset.view === known || (known === "chart" && link.dataset.view === "devices");
    link.toggleAttribute("aria-current", isHere);
    if (isHere) link.setAttribute("aria-current", link.dataset.view === known ? "page" : "true");
  }
  if (main.querySelector("form.token")) return;
  if (current?.name === known) {
    if (current.query !== String(params)) current.view.update(params);
    current.query = String(params);
    return;
  }
  const isFirst = current === undefined;
  show(known, params);
  if (!isFirst) main.querySelector("h1")?.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function show(name, params) {
  current?.view.stop();
  main.className = `view-${name}`;
  main.replaceChildren();
  current = { name, query: String(params), view: VIEWS[name](main, params) };
}

// Asks for a token in place of the view.
function askForToken(detail) {
  if (main.querySelector("form.token")) return;
  const hadToken = token.get() !== null;
  token.forget();
  current?.view.stop();
  current = undefined;
  forget.hidden = true;
  setService(false);
  const input = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true, placeholder: "tg_…", "aria-describedby": "token-help" });
  const remembered = h("input", { type: "checkbox", "aria-describedby": "token-help" });
  const form = h("form", { class: "panel token", "data-state": "token", onsubmit: (event) => {
    event.preventDefault();
    token.set(input.value.trim(), remembered.checked);
    fill(main);
    signedIn();
    route();
  } },
  h("h1", {}, "This server needs a token"),
  hadToken && h("p", { class: "notice bad", role: "alert" }, detail ? `The server refused the token: ${detail}.` : "The server refused the token."),
  h("label", { for: "token" }, "Token with the scope ", h("code", {}, "query")),
  h("div", { class: "row" }, input, h("button", { type: "submit" }, "Continue")),
  h("label", {}, remembered, " Remember on this device"),
  h("p", { id: "token-help", class: "muted" }, "The browser keeps it for this tab only, until the tab is closed; with ", h("em", {}, "Remember on this device"), " for everyone who uses this browser, until you forget it. ", h("code", {}, "tidegauge token new --name me --scope query --scope admin"), " makes one; ", h("code", {}, "admin"), " also shows the state of the service."));
  main.className = "view-token";
  document.title = "Token · tidegauge";
  fill(main, form);
  input.focus();
}

function signedIn() {
  forget.hidden = token.get() === null;
  service = "unknown";
  heartbeat();
}

function setService(isVisible) {
  service = isVisible ? "visible" : "hidden";
  document.querySelector('nav a[data-view="service"]').hidden = !isVisible;
}

// Asks the server for its state, at once and then regularly.
async function heartbeat() {
  clearTimeout(beat);
  try {
    const { data } = await getAnyStatus("/readyz");
    back();
    const [kind, text] = STATES[data.status] ?? [];
    pill.hidden = text === undefined; // the token may not see the state
    if (text) setPill(kind, text);
    if (service === "unknown") setService(await mayRead("/metrics"));
    warnOfClock();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    gone();
  }
  clearTimeout(beat);
  beat = setTimeout(heartbeat, isGone ? RETRIES_MS[Math.min(failures++, RETRIES_MS.length - 1)] : HEARTBEAT_MS);
}

function setPill(kind, text) {
  pill.className = `pill ${kind}`;
  if (pill.textContent !== text) pill.textContent = text;
}

function setNotice(key, element) {
  const before = notices.querySelector(`[data-about="${key}"]`);
  if (!element) return before?.remove();
  element.dataset.about = key;
  if (before?.textContent !== element.textContent) before ? before.replaceWith(element) : notices.append(element);
}

function gone() {
  isGone = true;
  document.body.classList.add("offline");
  pill.hidden = false;
  setPill("bad", "No connection");
  setNotice("gone", notice("bad", "The server does not answer. The page tries again every few seconds and goes on when it is back."));
}

function back() {
  failures = 0;
  if (!isGone) return;
  isGone = false;
  document.body.classList.remove("offline");
  service = "unknown"; // the server may have a new configuration
  setNotice("gone");
  connection.dispatchEvent(new Event("back"));
}

function warnOfClock() {
  const difference = clockDifference();
  const isWrong = Math.abs(difference) > CLOCK_MS;
  setNotice("clock", isWrong && notice("warn", `Your clock is ${inWords(Math.abs(difference))} ${difference > 0 ? "behind" : "ahead of"} the server's. Ages and ranges here are by the server's clock.`));
}

connection.addEventListener("failure", ({ detail: failure }) => {
  if (failure.kind === "unauthorized") askForToken(failure.detail);
  if (failure.kind === "gone" && !isGone) {
    gone();
    clearTimeout(beat);
    beat = setTimeout(heartbeat, RETRIES_MS[0]);
  }
});
connection.addEventListener("slow", ({ detail: number }) => {
  progress.hidden = number === 0;
  if (number === 0) {
    clearTimeout(slow);
    slow = undefined;
    setNotice("slow");
  } else slow ??= setTimeout(() => setNotice("slow", notice("warn", "The server is slow: an answer takes several seconds. What you see may be old.")), SLOW_MS);
});
forget.addEventListener("click", () => askForToken());
const leaveWall = () => go(read().view, changed(read().params, { wall: undefined }));
leave.addEventListener("click", leaveWall);
addEventListener("keydown", (event) => event.key === "Escape" && read().params.has("wall") && leaveWall());
document.querySelector("#skip").addEventListener("click", () => main.focus());
addEventListener("hashchange", route);
setInterval(tick, SECOND);
if (!location.hash) history.replaceState(null, "", href("devices"));
route();
signedIn();
