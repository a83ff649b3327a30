// The view of charts: some devices in a range of time, with a chart for each unit of their metrics.

import { changed, go, href, repeated } from "./address.js";
import { Poll, get, getAll, token } from "./api.js";
import { makeCard } from "./card.js";
import { editor } from "./editor.js";
import { areSame, fill, h } from "./page.js";
import { COLOURS, DASHES } from "./plot.js";
import {
  COMPARISONS, STEPS, chartsOf, comparisonOf, isCounter, isObject, lengthOfStep, limitsOf, linesOfIncreases, linesOfReadings, linesOfRollups, nameOf, offsetOf, onlyGrows, parseSeries, partsOf,
  rangeOf, stepFor, stepOfBars, total,
} from "./series.js";
import { failureNotice, failurePanel, notice, panel, remarksOn } from "./states.js";
import { DAY, HOUR, MINUTE, ageElement, clock, lengthOf, now, stamp, toInput, zone } from "./time.js";

const RANGES = [["1h", "1 hour"], ["12h", "12 hours"], ["24h", "24 hours"], ["1w", "1 week"], ["30d", "1 month"], ["365d", "1 year"]];
const SHORT_RANGES = { "30d": "1m", "365d": "1y" };

// The most devices of a view, lines of a chart, and charts (unless the address names the metrics).
const MAX_DEVICES = 8, MAX_LINES = 2 * COLOURS, MAX_CHARTS = 6;

// A device is silent after this time without a reading.
const SILENT = HOUR;
const isSilent = (device) => now() - Date.parse(device.lastSeen) > SILENT;

const isPhone = matchMedia("(max-width: 720px)");

// The most readings of a line that is drawn from readings. A longer line is drawn from rollups.
const MAX_RAW = Math.min(800, Math.round(2 * screen.width));

export function chartView(root, start) {
  let params = start;
  let isRaw; // whether lines are drawn from readings; undefined: the number of readings decides
  let shown; // the last answer and its time
  let drawnRaw, drawnHead; // the state in which the ranges and the head were drawn last
  const remarks = h("div", { "aria-live": "polite" });
  const head = h("div", { class: "chart-head" }), more = h("div", { class: "chart-head" }), ranges = h("div", { class: "ranges" }), charts = h("div", { class: "charts" });
  const controls = h("details", { class: "controls" }, h("summary", { class: "button" }, "Devices, range and step"), more, ranges);
  fill(root, head, controls, remarks, charts);
  // A phone has no room for the controls beside the chart.
  const fold = () => { controls.open = !isPhone.matches; };
  isPhone.addEventListener("change", fold);
  fold();
  const live = h("span");
  const cards = new Map();

  const move = (changes, options) => go("chart", changed(params, changes), options);
  const handlers = {
    zoom: (from, to) => {
      if (to - from < 1_000) return;
      move({ from: new Date(Math.round(from)).toISOString(), to: new Date(Math.round(to)).toISOString() });
    },
    reset: () => move({ from: undefined, to: undefined }),
  };

  const poll = new Poll(async (signal) => {
    const asked = params;
    const answer = await load(asked, isRaw, signal);
    if (asked !== params) return;
    isRaw = answer.isRaw;
    const isSame = shown && shown.asked === asked && areSame(answer.sources, shown.sources);
    shown = { ...answer, asked, at: now() };
    drawLive();
    if (!isSame) draw();
    else {
      drawHead(answer.known, answer.unknown, answer.allNames); // a device may have become silent
      if (answer.range.isLive) for (const card of cards.values()) card.move(answer.range);
    }
    fill(remarks, remarksOn(answer));
  }, (failure) => {
    if (failure.kind === "unauthorized") return;
    if (shown && failure.kind !== "forbidden" && shown.asked === params) {
      fill(remarks, failureNotice(failure, clock(shown.at, true)));
    } else {
      clear();
      fill(charts, failurePanel(failure, [h("a", { href: href("devices") }, "All devices")]));
    }
  });

  function update(next) {
    params = next;
    isRaw = undefined;
    drawRanges();
    root.classList.add("waiting");
    poll.now();
  }

  function draw() {
    root.classList.remove("waiting");
    const { known, unknown, groups, allNames, range, query } = shown;
    drawHead(known, unknown, allNames);
    if (drawnRaw !== shown.isRaw) drawRanges();
    if (groups.length === 0) {
      clear();
      fill(charts, nothing(known, unknown, range));
      return;
    }
    const keys = new Set(groups.map((group) => group.key));
    for (const [key, card] of cards) {
      if (keys.has(key)) continue;
      card.stop();
      cards.delete(key);
    }
    const isFirst = cards.size === 0;
    for (const group of groups) {
      const card = cards.get(group.key) ?? makeCard(group, handlers);
      cards.set(group.key, card);
    }
    const order = groups.map((group) => cards.get(group.key).element);
    if (isFirst || !areSame(order, charts.children)) fill(charts, order);
    for (const group of groups) cards.get(group.key).show(group, range, group.isBars ? shown.bars : query, params, shown.titles);
  }

  function clear() {
    root.classList.remove("waiting");
    for (const card of cards.values()) card.stop();
    cards.clear();
  }

  function nothing(known, unknown, range) {
    if (known.length === 0) {
      const names = unknown.length ? unknown : devicesOf(params);
      return panel({ kind: "unknown", title: names.length ? "No such device" : "No device chosen",
        text: names.length ? `The server has no readings of ${names.join(", ")}${token.get() ? ", or this token does not cover it" : ""}.` : "Choose one in the list of devices.",
        actions: [h("a", { class: "button", href: href("devices") }, "All devices")] });
    }
    const last = Math.max(...known.map((device) => Date.parse(device.lastSeen)));
    const length = range.to - range.from;
    const target = changed(params, { from: new Date(last - length + length / 20).toISOString(), to: new Date(last + length / 20).toISOString() });
    return panel({ kind: "nothing", title: "No readings in this range",
      text: [`From ${stamp(range.from)} to ${stamp(range.to)} there is nothing. The last reading is from ${stamp(last, true)}.`],
      actions: [h("a", { class: "button", href: href("chart", target), "data-key": "to-last" }, "Show the last readings")] });
  }

  function drawHead(known, unknown, allNames) {
    const chosen = devicesOf(params);
    const byId = new Map(known.map((device) => [device.deviceId, device]));
    const content = JSON.stringify([chosen, unknown, allNames, shown.names, known.map((device) => device.metadata)]);
    const silent = (device) => isSilent(device) && h("span", { class: "tag warn" }, "silent");
    if (drawnHead === content) { // a new head would drop a text that is being typed
      for (const time of root.querySelectorAll("time[data-device]")) {
        const device = byId.get(time.dataset.device);
        time.dataset.instant = Date.parse(device.lastSeen);
        fill(time.nextSibling, silent(device));
      }
      return;
    }
    drawnHead = content;
    const seen = (device) => {
      const time = ageElement(Date.parse(device.lastSeen));
      time.dataset.device = device.deviceId;
      return [time, h("span", {}, silent(device))];
    };
    const chips = chosen.map((device, nth) => h("li", { class: "chip" },
      h("i", { class: `swatch c${nth}` }),
      h("span", { class: "name", title: device }, shown.titles.get(device) ?? device),
      byId.has(device) ? h("span", { class: "muted" }, seen(byId.get(device))) : h("span", { class: "tag bad" }, "unknown"),
      h("button", { type: "button", class: "remove", "aria-label": `Remove ${device}`, "data-key": `remove ${device}`,
        onclick: () => move({ device: chosen.filter((other) => other !== device) }) }, "×")));
    const name = chosen.length === 1 ? nameOf(byId.get(chosen[0])?.metadata) : undefined;
    const title = name ?? (chosen.length === 1 ? chosen[0] : `${chosen.length} devices`);
    document.title = `${title} · tidegauge`;
    const metadata = chosen.length === 1 && byId.get(chosen[0])?.metadata;
    const open = more.querySelector("details.editor[open]");
    fill(head,
      h("h1", { tabindex: "-1" }, title, name && h("small", { class: "id" }, chosen[0]), chosen.length === 1 && known[0] && h("small", {}, "last reading ", seen(known[0]))),
      unknown.length > 0 && known.length > 0 && notice("warn", `There are no readings of ${unknown.join(", ")}.`));
    fill(more,
      h("ul", { class: "chips", "aria-label": "Devices in the charts" }, chosen.length > 1 && chips, chosen.length < MAX_DEVICES && h("li", {}, adder(chosen))),
      // An open editor stays, with the text that is being typed.
      chosen.length === 1 && known[0] && (open?.dataset.device === chosen[0] ? (open.update(known[0]), open) : editor(known[0], open !== null, () => poll.now())),
      metadata && h("dl", { class: "metadata" }, described(metadata).map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value)))),
      allNames.length > 1 && picker(allNames));
  }

  // The input that adds a device. It suggests IDs that begin with the typed text.
  function adder(chosen) {
    const options = h("datalist", { id: "device-ids" });
    const add = () => {
      const device = input.value.trim();
      if (device && !chosen.includes(device)) move({ device: [...chosen, device] });
    };
    let latest;
    const input = h("input", { type: "search", list: "device-ids", placeholder: "Compare with…", "aria-label": "Add a device by its ID", autocomplete: "off", "data-key": "add-device",
      onchange: () => [...options.children].some((option) => option.value === input.value) && add(),
      onkeydown: (event) => event.key === "Enter" && add(),
      oninput: async () => {
        const prefix = latest = input.value.trim();
        const page = await get(`/v1/devices?limit=12&prefix=${encodeURIComponent(prefix)}`).catch(() => ({ devices: [] }));
        if (latest === prefix) fill(options, page.devices.map(({ deviceId }) => h("option", { value: deviceId })));
      },
      onfocus: () => input.dispatchEvent(new Event("input")) });
    return [input, options];
  }

  // The checkboxes that choose metrics.
  function picker(allNames) {
    const named = params.getAll("metric");
    const isOn = (name) => (named.length ? named.includes(name) : shown.names.includes(name));
    const toggle = (name, on) => move({ metric: allNames.filter((other) => (other === name ? on : isOn(other))) });
    const open = more.querySelector("details.picker")?.open;
    return h("details", { class: "picker", open }, h("summary", { "data-key": "metrics" }, `Metrics: ${allNames.filter(isOn).length} of ${allNames.length}`),
      h("div", { class: "checks" }, allNames.map((name) => h("label", {}, h("input", { type: "checkbox", checked: isOn(name), "data-key": `metric ${name}`,
        onchange: (event) => toggle(name, event.target.checked) }), name))));
  }

  function drawRanges() {
    drawnRaw = shown?.isRaw;
    const range = rangeOf(params, now());
    const isNamed = (name) => range.isLive && lengthOf(range.name) === lengthOf(name);
    const shift = (part) => handlers.zoom(range.from + part * (range.to - range.from), range.to + part * (range.to - range.from));
    const scale = (factor) => {
      const centre = (range.from + range.to) / 2, half = (range.to - range.from) / 2 * factor;
      handlers.zoom(centre - half, Math.min(centre + half, factor > 1 ? Math.max(now(), range.to) : Infinity));
    };
    const [from, to] = [range.from, range.to].map((instant, nth) => h("input", { type: "datetime-local", value: toInput(instant), required: true,
      "aria-label": nth ? "To" : "From", "data-key": nth ? "to" : "from" }));
    const button = (key, label, text, onclick, disabled = false) => h("button", { type: "button", "data-key": key, "aria-label": label, title: label, onclick, disabled }, text);
    const wasOpen = ranges.querySelector("details.free")?.open;
    const automatic = stepFor(range.to - range.from);
    const steps = STEPS.filter(([, step]) => (range.to - range.from) / step <= 20_000 && step <= 2 * (range.to - range.from));
    fill(ranges,
      h("div", { class: "segments", role: "group", "aria-label": "Range" }, RANGES.map(([name, label]) =>
        h("button", { type: "button", "data-key": `range ${name}`, "aria-pressed": String(isNamed(name)), "aria-label": label, title: label,
          onclick: () => move({ range: name, from: undefined, to: undefined, step: undefined }) }, SHORT_RANGES[name] ?? name))),
      h("div", { class: "segments", role: "group", "aria-label": "Move and zoom" },
        button("earlier", "Earlier", "‹", () => shift(-0.5)), button("later", "Later", "›", () => shift(0.5), range.isLive),
        button("in", "Zoom in", "+", () => scale(0.5)), button("out", "Zoom out", "−", () => scale(2)),
        !range.isLive && button("reset", "Back to now", "Now", () => handlers.reset())),
      h("label", { class: "step" }, "Step ", h("select", { "data-key": "step", onchange: (event) => move({ step: event.target.value || undefined }) },
        h("option", { value: "" }, `auto (${shown?.asked === params && shown.isRaw ? "readings" : automatic})`),
        steps.map(([name]) => h("option", { value: name, selected: params.get("step") === name }, name)))),
      beginnings(),
      h("label", { class: "step" }, "Compare with ", h("select", { "data-key": "compare", onchange: (event) => move({ compare: event.target.value || undefined }) },
        h("option", { value: "" }, "nothing"), Object.entries(COMPARISONS).filter(([name]) => comparisonOf(new URLSearchParams({ compare: name }), params.get("step") ?? automatic))
          .map(([name, text]) => h("option", { value: name, selected: params.get("compare") === name }, text)))),
      h("details", { class: "free", open: wasOpen }, h("summary", { "data-key": "free" }, range.isLive ? "Free range" : `${stamp(range.from)} – ${stamp(range.to)}`),
        h("form", { onsubmit: (event) => { event.preventDefault(); handlers.zoom(Date.parse(from.value), Date.parse(to.value)); } },
          from, " to ", to, h("button", { type: "submit", "data-key": "apply",
            onclick: () => to.setCustomValidity(Date.parse(from.value) < Date.parse(to.value) ? "" : "This must be the later time.") }, "Show"))),
      h("a", { class: "button quiet", href: href("chart", changed(params, { wall: "1" })), "data-key": "wall" }, "Wall view"),
      h("span", { class: "zone muted" }, range.isLive && live, zone));
    drawLive();
  }

  // The choice of the hour at which steps begin, for steps of several hours or of a day.
  function beginnings() {
    const step = params.get("step"), length = lengthOfStep(step ?? "1h");
    if (!step || length <= HOUR || length > DAY) return undefined;
    const offset = offsetOf(params, step);
    const hours = Array.from({ length: length / HOUR }, (_, hour) => [hour ? `${hour}h` : "", clock(new Date(2001, 0, 1, hour).getTime())]);
    if (offset && !hours.some(([name]) => name === offset)) hours.push([offset, `${hours[0][1]} + ${offset}`]);
    return h("label", { class: "step" }, "from ", h("select", { "data-key": "offset", onchange: (event) => move({ offset: event.target.value || undefined }) },
      hours.map(([name, text]) => h("option", { value: name, selected: (offset ?? "") === name }, text))));
  }

  // Shows "live", or "silent" if all devices are silent.
  function drawLive() {
    const none = shown?.asked === params && shown.known.length > 0 && shown.known.every(isSilent);
    live.className = none ? "tag warn" : "live";
    live.textContent = none ? "silent" : "live";
  }

  drawRanges();
  fill(charts, h("div", { class: "card placeholder", "aria-busy": "true" }, h("p", { class: "muted" }, "Loading…")));
  return {
    update,
    refresh: () => poll.now(),
    stop() {
      isPhone.removeEventListener("change", fold);
      poll.stop();
      clear();
    },
  };
}

// The devices that an address names.
const devicesOf = (params) => [...new Set(params.getAll("device"))].slice(0, MAX_DEVICES);

// Metadata as pairs of texts. `{"a": {"b": 1}}` gives the key `a.b`.
export function flat(metadata, prefix = "") {
  return Object.entries(metadata ?? {}).flatMap(([key, value]) => (isObject(value)
    ? flat(value, `${prefix}${key}.`) : [[prefix + key, Array.isArray(value) ? value.join(", ") : String(value)]]));
}

// Metadata without units, kinds and limits, which values and charts show. Invalid limits stay.
export function described(metadata) {
  const { units, kind, limits, ...others } = metadata ?? {};
  const invalid = isObject(limits) ? Object.fromEntries(Object.entries(limits).filter(([name]) => !limitsOf(name, metadata))) : limits;
  const rest = { units: isObject(units) ? undefined : units, kind: isObject(kind) ? undefined : kind, limits: invalid };
  return flat({ ...others, ...Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined)) });
}

// The title of each device: its name, or its ID if it has none or another device has the same name or ID.
const titlesOf = (known) => new Map(known.map(({ deviceId, metadata }) => {
  const name = nameOf(metadata) ?? deviceId;
  return [deviceId, known.some((other) => other.deviceId !== deviceId && [other.deviceId, nameOf(other.metadata)].includes(name)) ? deviceId : name];
}));

// Gets everything that the view shows. `sources` are the answers; unchanged answers are the same objects as before.
async function load(params, wasRaw, signal) {
  const range = rangeOf(params, now());
  const asked = devicesOf(params);
  if (asked.length === 0) return { range, known: [], unknown: [], groups: [], allNames: [], names: [], sources: [] };
  const { pages: listed, devices } = await getAll(`/v1/devices?${repeated("device", asked)}`, signal);
  const known = asked.map((id) => devices.find((device) => device.deviceId === id)).filter(Boolean);
  const unknown = asked.filter((id) => !known.some((device) => device.deviceId === id));
  const { names, allNames } = metricsOf(known, params.getAll("metric"));
  const base = { range, known, unknown, allNames, names, titles: titlesOf(known), ...withFlags(listed) };
  if (known.length === 0) return { ...base, groups: [] };

  // A live range is queried without `to`. So the server ends it at the next step, and the address and its tag stay the
  // same for a while.
  const times = range.isLive ? `from=-${Math.round((range.to - range.from) / 1_000)}s` : `from=${range.from}&to=${range.to}`;
  const ids = known.map((device) => device.deviceId);
  const series = repeated("metric", names);
  const group = (lines) => colours(chartsOf(lines, known), ids);
  const metadataOf = new Map(known.map((device) => [device.deviceId, device.metadata]));
  // Replaces the lines of counters by bars: the increase in each step.
  const withBars = async (answer) => {
    const wanted = params.getAll("increase"), unwanted = params.getAll("values");
    const nameOf = (line) => parseSeries(line.series).name;
    const counts = (line) => wanted.includes(nameOf(line)) || isCounter(nameOf(line), metadataOf.get(line.device)) || onlyGrows(line);
    const counted = new Set(answer.lines.filter((line) => !unwanted.includes(nameOf(line)) && counts(line)).map(nameOf));
    const charts = chartsOf(answer.lines, known).filter((chart) => chart.names.every((name) => counted.has(name)));
    const counters = charts.flatMap((chart) => chart.names);
    if (counters.length === 0) return { ...answer, groups: group(answer.lines) };
    const step = chosen ?? stepOfBars(range.to - range.from);
    const selection = `${times}${repeated("device", ids)}${repeated("metric", counters)}`;
    // If the readings have expired or are too many, the values are drawn.
    const rolled = await rollups(selection, step, params, "count,increase", signal).catch(unlessRefused);
    if (!rolled) return { ...answer, groups: group(answer.lines) };
    const lines = [...answer.lines.filter((line) => !counters.includes(nameOf(line))), ...linesOfIncreases(rolled.devices)];
    return { ...answer, groups: group(lines), bars: rolled.query, ...withFlags([...answer.sources, ...rolled.pages]) };
  };
  // Undefined if there are more than `MAX_RAW` readings, or if the server gives fewer at once (`query.max_readings`).
  const raw = async () => {
    const pages = await Promise.all(ids.map((id) => get(`/v1/devices/${encodeURIComponent(id)}/readings?${times}&limit=${MAX_RAW}${series}`, { signal }))).catch(unlessRefused);
    if (!pages || pages.some((page) => page.next !== null)) return undefined;
    const lines = linesOfReadings(pages.map((page, nth) => ({ deviceId: ids[nth], readings: page.readings })));
    return { ...base, lines, isRaw: true, ...withFlags([...listed, ...pages]) };
  };
  const chosen = params.get("step"), isCompared = params.has("compare");
  if (wasRaw && !chosen && !isCompared) {
    const answer = await raw();
    if (answer) return withBars(answer);
  }
  const step = chosen ?? stepFor(range.to - range.from);
  const rolled = await rollups(`${times}${repeated("device", ids)}${series}`, step, params, "count,min,max,avg,last", signal);
  const lines = linesOfRollups(rolled.devices);
  const most = Math.max(0, ...lines.map((line) => line.count));
  if (!chosen && !isCompared && most <= MAX_RAW && most > 0 && wasRaw === undefined) {
    const answer = await raw();
    const isWhole = answer && lines.every((line) => answer.lines.find((other) => other.device === line.device && other.series === line.series));
    if (isWhole && total(answer.lines) >= total(lines) - edges(lines)) return withBars(answer);
  }
  return withBars({ ...base, lines, isRaw: false, query: rolled.query, ...withFlags([...listed, ...rolled.pages]) });
}

// Makes the answer to a refused query undefined. Other failures stay.
const unlessRefused = (failure) => {
  if (failure.kind !== "refused") throw failure;
};

// Some answers, and the flags of the first one from which readings or devices may be missing.
export const withFlags = (sources) => {
  const { partial, partialReason, laggingSeconds } = sources.find((answer) => answer.partial || answer.laggingSeconds) ?? {};
  return { sources, partial, partialReason, laggingSeconds };
};

// About how many readings of the first and last steps are outside of the range.
const edges = (lines) => lines.reduce((sum, { count, ts }) => sum + Math.ceil(3 * count / Math.max(1, ts.length)), 0);

// All pages of the rollups of some devices, and the part of the query that makes the steps. Steps follow the viewer's
// time zone. If the server refuses them, because they need expired or too many readings, they follow UTC. `isLocal`
// says whether the zone has the same steps.
async function rollups(selection, step, params, columns, signal, mayBeLocal = true) {
  const offset = offsetOf(params, step), compare = comparisonOf(params, step), length = lengthOfStep(step);
  const { from, to } = rangeOf(params, now());
  // Clocks may change within the range.
  const isWhole = (instant) => new Date(instant).getTimezoneOffset() * MINUTE % length === 0;
  const isUtc = [from, (from + to) / 2, to].every(isWhole);
  // Steps of up to an hour that are not those of UTC are made from readings, so only short ranges have them. An offset,
  // which the page offers for longer steps only, always counts from local hours.
  const needsZone = length > HOUR || Boolean(offset) || (isUtc ? Boolean(compare) : to - from <= 2 * DAY);
  const hasZone = mayBeLocal && zone !== "UTC" && needsZone;
  const isLocal = mayBeLocal && (hasZone || isUtc);
  const more = Object.entries({ step, offset, compare }).filter(([, value]) => value);
  const query = { step, parameters: `&${new URLSearchParams(more)}`, isLocal };
  try {
    return { ...(await getAll(`/v1/rollups?${selection}${query.parameters}${hasZone ? `&tz=${encodeURIComponent(zone)}` : ""}&fn=${columns}`, signal)), query };
  } catch (failure) {
    if (!hasZone || !["readings_expired", "too_many_values"].includes(failure.code)) throw failure;
    return rollups(selection, step, params, columns, signal, false);
  }
}

// The names of all metrics of some devices, and the names of the shown ones.
function metricsOf(known, named) {
  const charts = new Map();
  for (const device of known) {
    for (const text of device.metrics) {
      const { name, key } = partsOf(text, device.metadata);
      charts.set(key, (charts.get(key) ?? new Set()).add(name));
    }
  }
  const allNames = [...new Set([...charts.values()].flatMap((names) => [...names]))].sort();
  const first = new Set([...charts.values()].slice(0, MAX_CHARTS).flatMap((names) => [...names]));
  const chosen = named.filter((name) => allNames.includes(name));
  return { allNames, names: chosen.length ? chosen : allNames.filter((name) => first.has(name)) };
}

// Gives each line its colour and dashes. With several devices, the colour tells the device, and dashes tell its lines
// apart.
function colours(charts, ids) {
  for (const chart of charts) {
    const mostLines = ids.length > 1 ? DASHES.length : MAX_LINES;
    const styled = chart.lines.map((line) => {
      const own = chart.lines.filter((other) => other.device === line.device && !other.isEarlier);
      const nth = own.findIndex((other) => other.series === line.series);
      return nth < mostLines && { ...line, ...(ids.length > 1 ? { colour: ids.indexOf(line.device), dash: nth } : { colour: nth % COLOURS, dash: Math.floor(nth / COLOURS) }) };
    });
    chart.lines = styled.filter(Boolean);
    chart.hidden = styled.length - chart.lines.length;
  }
  return charts;
}
