// Panels and notices in place of data: no device yet, nothing found, and failures.

import { token } from "./api.js";
import { copyButton, h } from "./page.js";

// The states of the service, each with its colour and its words.
export const STATES = {
  ok: ["good", "Ready"],
  degraded: ["warn", "Store away"],
  overloaded: ["bad", "Refusing readings"],
  failed: ["bad", "Failed"],
};

// A panel in place of data.
export function panel({ title, text, body, actions = [], kind = "plain" }) {
  return h("section", { class: `panel ${kind}`, "data-state": kind },
    h("h2", {}, title), text && h("p", {}, text), body, actions.length > 0 && h("p", { class: "actions" }, actions));
}

// A line above data that is old or may be incomplete.
export const notice = (kind, ...text) => h("p", { class: `notice ${kind}`, "data-notice": kind }, text);

// The panel with a command that sends a first reading to this server.
export function firstReading() {
  const secret = token.get() ? ` \\\n  -H "Authorization: Bearer $TIDEGAUGE_TOKEN"` : "";
  const command = `curl ${location.origin}/v1/readings${secret} \\\n  --json '{"deviceId": "S1", "values": {"temp": 22.4}}'`;
  return panel({
    kind: "empty",
    title: "No device yet",
    text: "A device appears here with its first reading. This command sends one:",
    body: [h("div", { class: "command" }, h("pre", { tabindex: "0" }, h("code", {}, command)), copyButton(command)),
      h("p", { class: "muted" }, "The page shows the device as soon as the reading is there. Line protocol, remote write, OTLP, ",
        "webhooks and UDP are other ways to send.")],
  });
}

const PANELS = {
  gone: () => ["The server does not answer", "The page tries again by itself and goes on when the server is back."],
  slow: () => ["The server takes too long", "It did not answer in time. The page tries again; a shorter range or fewer devices are faster."],
  forbidden: ({ detail }) => ["This token may not see that", detail],
  unknown: ({ detail }) => ["Nothing here", detail],
  away: () => ["The store is away", "Readings are still accepted and wait in the log. Stored ones can be seen again when the store is back; the page tries again by itself."],
  busy: ({ detail }) => ["The server is busy", `${detail ?? "It refused the query."} The page tries again by itself.`],
  refused: ({ detail }) => ["The server refused the query", detail],
  failed: ({ detail, status }) => ["The server failed", detail ?? `It answered with status ${status}.`],
};

// The words for a failed request.
export const failureTitle = (failure) => (PANELS[failure.kind] ?? PANELS.failed)(failure)[0];

// The panel for a failed request.
export function failurePanel(failure, actions = []) {
  const [title, text] = (PANELS[failure.kind] ?? PANELS.failed)(failure);
  return panel({ kind: failure.kind, title, text, actions });
}

// The line about a failed request, above data from before.
export const failureNotice = (failure, since) => notice("bad", `${failureTitle(failure)}. This is what it said at ${since}.`);

// The value of `partialReason` while the store is away.
const STORE_AWAY = "the store does not answer";

// The lines for an answer that may lack readings or devices.
export function remarksOn({ partial, partialReason, laggingSeconds } = {}) {
  return [
    partial && notice("warn", partialReason === STORE_AWAY ? "The store is away: only readings that are not stored yet are shown." : `Devices may be missing: ${partialReason}`),
    laggingSeconds > 0 && notice("warn", `The server is catching up: readings of the last ${Math.ceil(laggingSeconds)} s may be missing.`),
  ];
}
