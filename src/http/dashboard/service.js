// The view of the service, with data from /metrics and /readyz.

import { Poll, getAnyStatus, getText } from "./api.js";
import { bytes, count, fill, h, short, tenths } from "./page.js";
import { COLOURS, Plot } from "./plot.js";
import { STATES, failureNotice, failurePanel, notice } from "./states.js";
import { brief, clock, now, SECOND } from "./time.js";

const WINDOW_MS = 10 * 60 * SECOND, MIN_WINDOW_MS = 60 * SECOND;
const MAX_SAMPLES = 400, MAX_ERRORS = 50;

// The counters whose growth is an error, each with a function that makes the text of the error.
const ERRORS = {
  tidegauge_readings_rejected_total: (number, { reason, protocol }) => `${things(number, "reading")} rejected: ${reason} (${protocol})`,
  tidegauge_values_rejected_total: (number, { reason, protocol }) => `${things(number, "value")} rejected: ${reason} (${protocol})`,
  tidegauge_readings_dead_lettered_total: (number, { reason }) => `${things(number, "reading")} to the dead letters: ${reason}`,
  tidegauge_flush_retries_total: (number, { reason }) => `${things(number, "write")} to the store failed and repeated: ${reason}`,
  tidegauge_udp_dropped_total: (number, { reason }) => `${things(number, "datagram")} dropped: ${reason}`,
  tidegauge_mqtt_refused_total: (number, { reason }) => `nothing stored of ${things(number, "MQTT message")}: ${reason}`,
  tidegauge_mqtt_disconnects_total: (number, { reason }) => `${things(number, "connection")} to an MQTT broker ended or failed: ${reason}`,
  tidegauge_limited_total: (number, { limit }) => `${things(number, "refusal")} by ${limit}`,
  tidegauge_store_unreadable_total: (number, { what }) => `${things(number, "read")} found damage in the store: ${what}`,
  tidegauge_rollup_retries_total: (number, { reason }) => `${things(number, "rollup")} failed and repeated: ${reason}`,
};

const things = (number, thing) => `${count(number)} ${thing}${number === 1 ? "" : "s"}`;

// Reads the samples of counters and gauges from the text format of Prometheus. Histograms are not shown.
export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (!line.startsWith("tidegauge_") && !line.startsWith("process_")) continue;
    const at = line.lastIndexOf(" "), head = line.slice(0, at);
    const brace = head.indexOf("{");
    const name = brace < 0 ? head : head.slice(0, brace);
    if (name.endsWith("_bucket")) continue;
    const labels = {};
    if (brace >= 0) for (const [, key, value] of head.slice(brace).matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[key] = value;
    const list = samples.get(name) ?? [];
    list.push({ head, labels, value: Number(line.slice(at + 1)) });
    samples.set(name, list);
  }
  return samples;
}

export function serviceView(root) {
  document.title = "Service · tidegauge";
  let before, errors = [], at;
  const history = []; // of { at, rates: Map of protocol to readings per second }
  const remarks = h("div", { "aria-live": "polite" }), cards = h("div", { class: "cards" });
  const host = h("div", { class: "plot", role: "img", "aria-label": "Readings per second by protocol, since this page was opened" });
  const legend = h("table", { class: "legend" });
  const collecting = h("span", { class: "muted" }, "collecting…");
  const rates = h("section", { class: "card chart", "data-chart": "rates" }, h("header", {}, h("h2", {}, "Readings per second"), collecting), host, legend);
  const rejected = h("section", { class: "card", "data-card": "rejected" });
  const udp = h("section", { class: "card", "data-card": "udp" });
  const mqtt = h("section", { class: "card", "data-card": "mqtt" });
  const log = h("section", { class: "card", "data-card": "errors" });
  const plot = new Plot(host, { zoom() {}, reset() {}, cursor() {} }, { fromZero: true });
  fill(root, h("h1", { class: "visually-hidden", tabindex: "-1" }, "Service"), remarks, cards, rates, h("div", { class: "columns" }, rejected, udp, mqtt), log);
  rates.hidden = rejected.hidden = udp.hidden = mqtt.hidden = log.hidden = true;
  fill(cards, h("p", { class: "muted placeholder", "aria-busy": "true" }, "Loading…"));

  const poll = new Poll(async (signal) => {
    const [text, ready] = await Promise.all([getText("/metrics", { signal }), getAnyStatus("/readyz", { signal })]);
    const samples = parse(text);
    at = now();
    fill(remarks, ready.data.reason && notice("bad", ready.data.reason));
    draw(samples, ready.data);
    before = { samples, at };
  }, (failure) => {
    if (failure.kind === "unauthorized") return;
    if (before && failure.kind !== "forbidden") return fill(remarks, failureNotice(failure, clock(at, true)));
    rates.hidden = rejected.hidden = udp.hidden = mqtt.hidden = log.hidden = true;
    fill(cards, failurePanel(failure));
  });

  function draw(samples, ready) {
    const one = (name) => samples.get(`tidegauge_${name}`)?.[0]?.value ?? 0;
    const all = (name) => samples.get(`tidegauge_${name}`) ?? [];
    const total = (name) => all(name).reduce((sum, sample) => sum + sample.value, 0);
    const started = samples.get("process_start_time_seconds")?.[0]?.value;
    const isSameRun = before && started === before.samples.get("process_start_time_seconds")?.[0]?.value;
    const seconds = before ? (at - before.at) / SECOND : 0;
    // The growth of a sample since the last answer; undefined if this is the first answer.
    const growth = (name, head) => {
      if (!before) return undefined;
      const of = (from) => from.get(`tidegauge_${name}`)?.find((sample) => sample.head === head)?.value ?? 0;
      return of(samples) - (isSameRun ? of(before.samples) : 0);
    };
    drawCards(one, total, ready, started, samples);
    drawRates(all("readings_received_total"), (head) => growth("readings_received_total", head), seconds);
    drawRejected(all("readings_rejected_total"));
    drawUdp(one, all("udp_dropped_total"));
    drawMqtt(one, all, total);
    if (before) {
      for (const [name, words] of Object.entries(ERRORS)) {
        for (const { head, labels } of samples.get(name) ?? []) {
          const number = growth(name.slice("tidegauge_".length), head);
          if (number > 0) errors.unshift({ at, text: words(number, labels) });
        }
      }
      errors = errors.slice(0, MAX_ERRORS);
    }
    drawErrors();
    rates.hidden = rejected.hidden = udp.hidden = log.hidden = false;
  }

  function drawCards(one, total, ready, started, samples) {
    const store = one("store_up") === 1;
    const away = ready.storeAwaySeconds;
    const build = samples.get("tidegauge_build_info")?.[0]?.labels ?? {};
    fill(cards,
      figure("State", STATES[ready.status]?.[1] ?? "Unknown", { kind: ready.status === "ok" ? "good" : "bad", note: [`up for ${brief(at - started * SECOND)}, version ${build.version ?? "unknown"}`] }),
      figure("Store", store ? "Answers" : "Away", { kind: store ? "good" : "bad", note: [[away !== undefined && `for ${brief(away * SECOND)}`, one("store_bytes") > 0 && `${bytes(one("store_bytes"))} on disk`].filter(Boolean).join(", ")] }),
      figure("Stored", count(one("readings_stored_total")), { note: [`readings, and ${things(one("readings_duplicate_total"), "duplicate")}`] }),
      figure("Pending", count(one("readings_pending")), { note: [one("readings_pending") > 0 ? `readings; the oldest waits for ${brief(one("oldest_pending_seconds") * SECOND)}` : "readings wait for the store"], share: [one("pending_bytes"), one("pending_limit_bytes")] }),
      figure("Log", bytes(one("log_bytes")), { note: [`of ${bytes(one("log_limit_bytes"))}`], share: [one("log_bytes"), one("log_limit_bytes")] }),
      figure("Rejected", count(total("readings_rejected_total")), { kind: total("readings_rejected_total") > 0 ? "warn" : "", note: ["readings since the start"] }),
      figure("Dead letters", count(total("readings_dead_lettered_total")), { kind: total("readings_dead_lettered_total") > 0 ? "bad" : "", note: [`${bytes(one("dead_letter_bytes"))} of ${bytes(one("dead_letter_limit_bytes"))}`] }),
      silentDevices(samples.get("tidegauge_devices_silent")?.[0]?.value));
  }

  // Without a sample, the server has not counted silent devices yet, or is configured not to.
  function silentDevices(number) {
    if (number === undefined) return figure("Silent devices", "–", { note: ["not counted yet, or devices.silent_after is 0s"] });
    return figure("Silent devices", count(number), { kind: number > 0 ? "warn" : "", note: ["without a reading for devices.silent_after"] });
  }

  function figure(title, value, { kind = "", note = [], share } = {}) {
    const part = share && share[1] > 0 ? Math.min(1, share[0] / share[1]) : undefined;
    return h("section", { class: `card figure ${kind}`, "data-figure": title.toLowerCase() }, h("h2", {}, title), h("p", { class: "big" }, value),
      part !== undefined && meter(title, part),
      h("p", { class: "muted" }, note));
  }

  function meter(title, part) {
    const text = `${tenths(part * 100)} %`;
    const bar = h("i", { class: part > 0.9 ? "bad" : part > 0.7 ? "warn" : "" });
    bar.style.width = `${part * 100}%`;
    return h("div", { class: "meter", role: "meter", "aria-label": title, "aria-valuenow": part.toFixed(3), "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuetext": text, title: text }, bar);
  }

  function drawRates(received, growth, seconds) {
    if (seconds > 0) {
      history.push({ at, rates: new Map(received.map(({ head, labels }) => [labels.protocol, growth(head) / seconds])) });
      while (history.length > MAX_SAMPLES || history[0].at < at - WINDOW_MS) history.shift();
    }
    collecting.hidden = history.length > 1;
    const totals = new Map(received.map(({ labels, value }) => [labels.protocol, value]));
    const used = [...totals].filter(([, value]) => value > 0).map(([protocol]) => protocol);
    const lines = used.map((protocol, nth) => ({ colour: nth % COLOURS, dash: 0, ts: history.map((entry) => entry.at), mean: history.map((entry) => entry.rates.get(protocol) ?? 0) }));
    plot.show(lines, { from: Math.min(history[0]?.at ?? at, at - MIN_WINDOW_MS), to: at });
    fill(legend, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Protocol"), h("th", { scope: "col", class: "number" }, "Per second"), h("th", { scope: "col", class: "number" }, "Received"))),
      h("tbody", {}, used.map((protocol, nth) => h("tr", {}, h("th", { scope: "row" }, h("i", { class: `swatch c${nth % COLOURS}` }), protocol),
        h("td", { class: "number" }, history.length ? short(Number((history.at(-1).rates.get(protocol) ?? 0).toFixed(1))) : "–"), h("td", { class: "number" }, count(totals.get(protocol)))))),
      used.length === 0 && h("caption", {}, "No readings since the start."));
  }

  function drawRejected(samples) {
    const rows = samples.filter(({ value }) => value > 0).sort((one, other) => other.value - one.value);
    fill(rejected, h("h2", {}, "Rejected readings"), rows.length === 0 ? h("p", { class: "muted" }, "None since the start.") : h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Reason"), h("th", { scope: "col" }, "Protocol"), h("th", { scope: "col", class: "number" }, "Readings"))),
      h("tbody", {}, rows.map(({ labels, value }) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, labels.reason)), h("td", {}, labels.protocol), h("td", { class: "number" }, count(value)))))));
  }

  // The card is shown if there are brokers, or if the server for MQTT devices is on.
  function drawMqtt(one, all, total) {
    const brokers = all("mqtt_connected"), hasListener = all("mqtt_listener_ended_total").length > 0;
    mqtt.hidden = brokers.length === 0 && !hasListener;
    const away = brokers.filter(({ value }) => value === 0).length;
    drawCounts(mqtt, "Messages (MQTT)", [["received", total("mqtt_messages_total") + one("mqtt_listener_messages_total")],
      ...all("mqtt_refused_total").filter(({ value }) => value > 0).map(({ labels, value }) => [`nothing stored: ${labels.reason}`, value]),
      ...(brokers.length > 0 ? [["brokers without a connection", away]] : [])],
    [["not acknowledged yet", total("mqtt_unacknowledged") + one("mqtt_listener_unacknowledged")],
      ...(hasListener ? [["connections of devices", one("mqtt_listener_connections")]] : [])]);
  }

  function drawUdp(one, dropped) {
    drawCounts(udp, "Datagrams (UDP)", [["received", one("udp_datagrams_total")], ["without an accepted reading", one("udp_malformed_total")],
      ...dropped.map(({ labels, value }) => [`dropped: ${labels.reason}`, value]), ["missing numbers of messages", one("udp_sequence_gaps_total")]], []);
  }

  // Draws a table of numbers. The first of `counted` is a total, and the others are losses. `states` are no losses.
  function drawCounts(card, title, counted, states) {
    const row = ([name, value], isLoss) => h("tr", { class: isLoss && value > 0 ? "warn" : "" }, h("th", { scope: "row" }, name), h("td", { class: "number" }, count(value)));
    fill(card, h("h2", {}, title), h("table", {}, h("thead", { class: "visually-hidden" }, h("tr", {}, h("th", { scope: "col" }, "What"), h("th", { scope: "col", class: "number" }, "Number"))),
      h("tbody", {}, counted.map((entry, nth) => row(entry, nth > 0)), states.map((entry) => row(entry, false)))));
  }

  function drawErrors() {
    fill(log, h("h2", {}, "Last errors"), errors.length === 0 ? h("p", { class: "muted" }, "None since this page was opened. The log lines of the server have those from before.")
        : h("ol", { class: "errors" }, errors.map((error) => h("li", {}, h("time", { class: "muted" }, clock(error.at, true)), " ", error.text))));
  }

  return {
    update() {},
    refresh: () => poll.now(),
    stop() {
      poll.stop();
      plot.stop();
    },
  };
}
