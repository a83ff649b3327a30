// The view of devices: search, filters by metadata, pages, the latest values and their age.

import { changed, go, href, repeated } from "./address.js";
import { Poll, get, getAll } from "./api.js";
import { described, flat, withFlags } from "./chart.js";
import { areSame, exact, fill, h, short } from "./page.js";
import { labelText, limitsOf, nameOf, parseSeries, partsOf } from "./series.js";
import { failureNotice, failurePanel, firstReading, panel, remarksOn } from "./states.js";
import { DAY, HOUR, MINUTE, ageElement, clock, lengthOf, now, stamp } from "./time.js";

// The most devices of a page. If the server allows fewer (`query.max_devices`), it says how many.
let pageSize = 50;

// The most pages that one search gets, because pages of a filter may have no devices. The viewer may go on.
const MAX_PAGES = 20;

const MAX_SELECTED = 8, MAX_VALUES = 4, MAX_METADATA = 4, MAX_NAMES = 100;
const SILENT = [["5m", "5 minutes"], ["15m", "15 minutes"], ["1h", "1 hour"], ["6h", "6 hours"], ["1d", "1 day"], ["1w", "1 week"]];
const SILENT_DEFAULT = "1h";

// The age at which the small lines of the last day are loaded again, and their size.
const LINES_AGE = 5 * MINUTE, LINE_WIDTH = 48, LINE_HEIGHT = 14;

export function devicesView(root, start) {
  let params = start;
  let shown;
  const before = []; // the cursors of the previous pages
  const seen = new Map(); // keys of metadata and their values, to suggest them
  const selected = new Set(params.getAll("select"));

  const search = h("input", { type: "search", placeholder: "Device ID begins with…", "aria-label": "Search: the device ID begins with", autocomplete: "off",
    spellcheck: "false", value: params.get("prefix") ?? "", oninput: () => { clearTimeout(typing); typing = setTimeout(find, 200); },
    onkeydown: (event) => event.key === "Enter" && find() });
  let typing;
  const [keys, values] = ["keys", "values"].map((id) => h("datalist", { id: `filter-${id}` }));
  const key = h("input", { list: "filter-keys", placeholder: "key", "aria-label": "Key of the metadata", autocomplete: "off", required: true, size: 8,
    oninput: () => fill(values, [...(seen.get(key.value) ?? [])].map((value) => h("option", { value }))) });
  const operator = h("select", { "aria-label": "Comparison" }, h("option", { value: "" }, "is"), h("option", { value: "!" }, "is not"));
  const value = h("input", { list: "filter-values", placeholder: "value or text*", "aria-label": "Value of the metadata", autocomplete: "off", required: true, size: 12 });
  const filter = h("form", { class: "filter", onsubmit: (event) => {
    event.preventDefault();
    const next = changed(params, { cursor: undefined });
    next.append(`meta.${key.value.trim()}${operator.value}`, value.value);
    key.value = value.value = "";
    go("devices", next);
    key.focus();
  } }, key, operator, value, keys, values, h("button", { type: "submit" }, "Add filter"));
  const silent = h("select", { "aria-label": "Silent after", onchange: () => move({ silent: silent.value === SILENT_DEFAULT ? undefined : silent.value }) },
    SILENT.map(([name, text]) => h("option", { value: name }, text)));
  const only = h("input", { type: "checkbox", onchange: () => move({ only: only.checked ? "silent" : undefined }) });
  const beyond = h("input", { type: "checkbox", onchange: () => move({ beyond: beyond.checked ? "limits" : undefined }) });
  const chips = h("ul", { class: "chips", "aria-label": "Filters" });
  const tools = h("div", { class: "tools" }, search, filter,
    h("span", { class: "silent-tools" }, h("label", {}, "Silent after ", silent), h("label", {}, only, " only silent ones"),
      h("label", {}, beyond, " only beyond limits")));
  const remarks = h("div", { "aria-live": "polite" });
  const list = h("div", { class: "list" }), pages = h("nav", { class: "pages", "aria-label": "Pages" });
  const bar = h("div", { class: "selection", hidden: true });
  fill(root, h("h1", { class: "visually-hidden", tabindex: "-1" }, "Devices"), tools, chips, remarks, list, pages, bar);
  fill(list, h("p", { class: "muted placeholder", "aria-busy": "true" }, "Loading…"));

  const move = (changes) => go("devices", changed(params, { cursor: undefined, ...changes }));

  function find() {
    clearTimeout(typing);
    const prefix = search.value.trim();
    if (prefix === (params.get("prefix") ?? "")) return;
    go("devices", changed(params, { cursor: undefined, prefix: prefix || undefined }), { replace: true });
  }

  const poll = new Poll(async (signal) => {
    const asked = params;
    const found = await load(asked, signal, (number) => asked === params && !shown && fill(list, h("p", { class: "muted" }, `Looking… ${number} found so far`)));
    if (asked !== params) return;
    root.classList.remove("waiting");
    const marks = found.devices.map(markOf);
    if (!shown || shown.asked !== asked || !areSame(found.sources, shown.sources)) {
      shown = { latest: shown?.asked === asked ? shown.latest : undefined, ...found, asked, marks };
      draw();
    } else if (!areSame(marks, shown.marks)) {
      shown.marks = marks;
      draw();
    }
    shown.at = now();
    fill(remarks, remarksOn(found));
    if (found.devices.length === 0) return;
    const ids = repeated("device", found.devices.map(({ deviceId }) => deviceId));
    const { devices: latest } = await getAll(`/v1/latest?${ids}`, signal);
    if (asked !== params) return;
    if (!shown.latest || !areSame(latest, shown.latest)) {
      shown.latest = latest;
      drawValues();
    }
    if (shown.linesOf === shown.devices && now() - shown.linesAt < LINES_AGE) return;
    // Without lines, the values are shown all the same.
    const lines = await getAll(linesPath(latest) + ids, signal).catch(() => undefined);
    if (asked !== params) return;
    Object.assign(shown, { lines, linesOf: shown.devices, linesAt: now() });
    drawValues();
  }, (failure) => {
    root.classList.remove("waiting");
    if (failure.kind === "unauthorized") return;
    if (shown && shown.asked === params && shown.at && failure.kind !== "forbidden") {
      fill(remarks, failureNotice(failure, clock(shown.at, true)));
      return;
    }
    shown = undefined;
    fill(remarks);
    fill(pages);
    fill(list, failurePanel(failure, failure.kind === "refused" ? [clear()] : []));
  });

  const clear = () => h("a", { class: "button", href: href("devices"), "data-key": "clear" }, "Show all devices");

  function update(next) {
    const isOther = String(changed(next, { select: undefined })) !== String(changed(params, { select: undefined }));
    const withoutCursor = (query) => String(changed(query, { cursor: undefined, select: undefined }));
    if (withoutCursor(next) !== withoutCursor(params) || !next.has("cursor")) before.length = 0;
    params = next;
    drawTools();
    if (!isOther) return;
    root.classList.add("waiting");
    poll.now();
  }

  function drawTools() {
    document.title = "Devices · tidegauge";
    if (document.activeElement !== search) search.value = params.get("prefix") ?? "";
    silent.value = lengthOf(params.get("silent")) ? params.get("silent") : SILENT_DEFAULT;
    only.checked = params.get("only") === "silent";
    beyond.checked = params.has("beyond");
    const filters = filtersOf(params);
    fill(chips, filters.map(([name, wanted]) => {
      const isNot = name.endsWith("!");
      const text = `${name.slice(5, isNot ? -1 : undefined)} ${isNot ? "is not" : "is"} ${wanted}`;
      return h("li", { class: "chip" }, text, h("button", { type: "button", class: "remove", "aria-label": `Remove the filter ${text}`, onclick: () => {
        const rest = changed(params, { cursor: undefined });
        rest.delete(name, wanted);
        go("devices", rest);
      } }, "×"));
    }), filters.length > 0 && h("li", {}, clear()));
    drawSelection();
  }

  function draw() {
    const { devices, next, marks } = shown;
    for (const device of devices) {
      for (const [name, text] of flat(device.metadata)) seen.set(name, (seen.get(name) ?? new Set()).add(text));
    }
    fill(keys, [...seen.keys()].map((name) => h("option", { value: name })));
    const isFiltered = params.has("prefix") || params.get("only") === "silent" || params.has("beyond") || filtersOf(params).length > 0;
    const isFirst = !params.has("cursor");
    tools.hidden = devices.length === 0 && isFirst && !isFiltered;
    if (devices.length === 0 && isFirst && next === null) {
      fill(pages);
      fill(list, isFiltered ? panel({ kind: "nothing", title: "No device matches", text: "No device that this page may see fits the search and the filters.", actions: [clear()] }) : firstReading());
      return;
    }
    fill(list, h("table", { class: "devices" },
      h("thead", {}, h("tr", {}, h("th", { class: "check" }, h("span", { class: "visually-hidden" }, "Select")), ["Device", "Latest values", "Metadata", "Last reading"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, devices.map((device, nth) => row(device, marks[nth])))));
    const first = devices[0]?.deviceId, last = devices.at(-1)?.deviceId;
    fill(pages,
      h("button", { type: "button", "data-key": "back", disabled: isFirst, onclick: () => {
        const cursor = before.pop();
        go("devices", changed(params, { cursor }));
      } }, before.length > 0 || isFirst ? "Previous" : "First page"),
      h("span", { class: "muted" }, devices.length === 0 ? "No more devices" : devices.length === 1 ? first : [h("span", {}, first), " … ", h("span", {}, last)]),
      h("button", { type: "button", "data-key": "next", disabled: next === null, onclick: () => {
        before.push(params.get("cursor") ?? undefined);
        go("devices", changed(params, { cursor: next }));
        scrollTo(0, 0);
      } }, "Next"));
    pages.hidden = isFirst && next === null;
    drawValues();
  }

  // Whether a device is silent, or its clock is ahead.
  function markOf({ lastSeen }) {
    const length = now() - Date.parse(lastSeen);
    const limit = lengthOf(params.get("silent")) ?? lengthOf(SILENT_DEFAULT);
    return length > limit ? "silent" : length < -MINUTE ? "ahead" : "";
  }

  function row(device, mark) {
    const { deviceId } = device;
    const metadata = described(device.metadata);
    return h("tr", { class: mark, "data-device": deviceId },
      h("td", { class: "check" }, h("input", { type: "checkbox", "aria-label": `Select ${deviceId}`, checked: selected.has(deviceId), "data-key": `select ${deviceId}`,
        onchange: (event) => select(deviceId, event.target.checked) })),
      h("th", { scope: "row" }, h("a", { href: href("chart", new URLSearchParams({ device: deviceId })), title: deviceId, "data-key": `device ${deviceId}` }, nameOf(device.metadata) ?? deviceId),
        nameOf(device.metadata) && h("span", { class: "muted id" }, deviceId)),
      h("td", { class: "values" }, h("span", { class: "muted" }, "…")),
      h("td", { class: "meta" }, metadata.slice(0, MAX_METADATA).map(([name, text]) => h("button", { type: "button", class: "pair", title: `Only devices whose ${name} is ${text}`,
        "data-key": `meta ${deviceId} ${name}`, onclick: () => {
          const more = changed(params, { cursor: undefined });
          more.append(`meta.${name}`, text.replace(/[\\*]/g, "\\$&"));
          go("devices", more);
        } }, h("span", { class: "muted" }, `${name} `), text)), metadata.length > MAX_METADATA && h("span", { class: "muted" }, `+${metadata.length - MAX_METADATA}`)),
      h("td", { class: "age" }, ageElement(Date.parse(device.lastSeen)), mark === "silent" && h("span", { class: "tag warn" }, "silent"),
        mark === "ahead" && h("span", { class: "tag warn", title: "The last reading is from the future: the clock of the device is wrong." }, "clock ahead")));
  }

  function drawValues() {
    if (!shown?.latest) return;
    const latest = new Map(shown.latest.map((device) => [device.deviceId, device.metrics]));
    const lines = new Map((shown.lines?.devices ?? []).map((device) => [device.deviceId, device.metrics]));
    for (const line of list.querySelectorAll("tr[data-device]")) {
      const all = latest.get(line.dataset.device) ?? {}, metrics = foremost(all), number = Object.keys(all).length;
      const { metadata } = shown.devices.find((device) => device.deviceId === line.dataset.device);
      fill(line.querySelector(".values"), metrics.map(([series, { ts, value, beyond }]) => {
        const { name, labels, unit } = partsOf(series, metadata), text = labelText(labels);
        const limit = beyond && `${beyond === "max" ? "above" : "below"} its limit, ${exact(limitsOf(name, metadata)?.[beyond])}`;
        return h("span", { class: limit ? "value beyond" : "value", title: [series, stamp(Date.parse(ts), true), limit].filter(Boolean).join(", ") },
          h("span", { class: "muted" }, text ? `${name} ${text} ` : `${name} `), h("b", {}, short(value)), unit && ` ${unit}`, lineOf(lines.get(line.dataset.device)?.[series]),
          limit && h("span", { class: "tag bad" }, beyond === "max" ? "high" : "low"));
      }), number > MAX_VALUES && h("span", { class: "muted" }, `+${number - MAX_VALUES}`));
    }
  }

  function select(deviceId, isOn) {
    if (isOn) selected.add(deviceId);
    else selected.delete(deviceId);
    go("devices", changed(params, { select: [...selected] }), { replace: true });
  }

  function drawSelection() {
    bar.hidden = selected.size === 0;
    const ids = [...selected];
    const isMany = ids.length > MAX_SELECTED;
    fill(bar, h("span", {}, isMany ? `${ids.length} selected: a chart has at most ${MAX_SELECTED} devices` : `${ids.length} selected`),
      !isMany && h("a", { class: "button", href: href("chart", new URLSearchParams(ids.map((id) => ["device", id]))), "data-key": "compare" }, ids.length > 1 ? "Compare" : "Show"),
      h("button", { type: "button", class: "quiet", "data-key": "unselect", onclick: () => {
        selected.clear();
        for (const box of list.querySelectorAll(".check input")) box.checked = false;
        go("devices", changed(params, { select: undefined }), { replace: true });
      } }, "Clear"));
  }

  drawTools();
  return { update, refresh: () => poll.now(), stop: () => poll.stop() };
}

// The values of a device that the list shows: those beyond their limits, then the newest.
const foremost = (metrics) => Object.entries(metrics).sort(([, one], [, other]) => !one.beyond - !other.beyond || (one.ts < other.ts ? 1 : one.ts > other.ts ? -1 : 0)).slice(0, MAX_VALUES);

const filtersOf = (params) => [...params].filter(([name]) => name.startsWith("meta."));

// Gets a page of devices. A filter may need several requests.
async function load(params, signal, progress) {
  const query = new URLSearchParams(filtersOf(params));
  if (params.get("prefix")) query.set("prefix", params.get("prefix"));
  if (params.get("only") === "silent") {
    query.set("silent_for", lengthOf(params.get("silent")) ? params.get("silent") : SILENT_DEFAULT);
  }
  if (params.has("beyond")) query.set("beyond", "limits");
  let cursor = params.get("cursor");
  const devices = [], sources = [];
  for (let page = 0; page < MAX_PAGES; page++) {
    if (cursor) query.set("cursor", cursor);
    query.set("limit", pageSize - devices.length);
    let answer;
    try {
      answer = await get(`/v1/devices?${query}`, { signal });
    } catch (failure) {
      const most = Number(/^limit: .* (\d+)$/.exec(failure.detail)?.[1]);
      if (!(most < pageSize)) throw failure;
      pageSize = most;
      return load(params, signal, progress);
    }
    sources.push(answer);
    devices.push(...answer.devices);
    cursor = answer.next;
    if (cursor === null || devices.length >= pageSize / 2) break;
    progress(devices.length);
  }
  return { devices, next: cursor, ...withFlags(sources) };
}

// The path of the last day of the listed values, in steps of an hour, without the devices.
function linesPath(devices) {
  const names = new Set(devices.flatMap(({ metrics }) => foremost(metrics).map(([series]) => parseSeries(series).name)));
  return `/v1/rollups?from=-${DAY / HOUR}h&step=1h&fn=avg${repeated("metric", [...names].slice(0, MAX_NAMES))}`;
}

// Draws a small line of the last day, without axes.
function lineOf(points) {
  const values = (points ?? []).filter(({ avg }) => avg !== null);
  if (values.length < 2) return undefined;
  const means = values.map(({ avg }) => avg), low = Math.min(...means), high = Math.max(...means);
  const end = Math.floor(now() / HOUR) * HOUR;
  const x = (ts) => LINE_WIDTH * (1 - (end - Date.parse(ts)) / DAY), y = (value) => (high > low ? 1 + (LINE_HEIGHT - 2) * (high - value) / (high - low) : LINE_HEIGHT / 2);
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", values.map(({ ts, avg }) => `${x(ts).toFixed(1)},${y(avg).toFixed(1)}`).join(" "));
  for (const [name, value] of Object.entries({ class: "spark", width: LINE_WIDTH, height: LINE_HEIGHT, "aria-hidden": "true" })) picture.setAttribute(name, value);
  picture.append(line);
  return picture;
}
