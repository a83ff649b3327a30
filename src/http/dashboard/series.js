// Makes lines and charts of answers: texts of series, steps of ranges, gaps, and the chart of each line.

import { DAY, HOUR, MINUTE, lengthOf } from "./time.js";

// Splits the text of a series, `name` or `name{key=value,...}`. In keys and values a backslash escapes
// \ { } , and =; in a name it is a character.
export function parseSeries(text) {
  const labels = {};
  let name, key, part = "";
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === "\\" && name !== undefined) part += text[++at] ?? "";
    else if (character === "{" && name === undefined) [name, part] = [part, ""];
    else if (character === "=" && name !== undefined && key === undefined) [key, part] = [part, ""];
    else if ((character === "," || character === "}") && key !== undefined) {
      labels[key] = part;
      [key, part] = [undefined, ""];
    } else part += character;
  }
  return { name: name ?? part, labels };
}

// The name of a device in its metadata; undefined if it has none.
export const nameOf = (metadata) => (typeof metadata?.name === "string" && metadata.name !== "" ? metadata.name : undefined);

// The parts of a series, its unit, and the key of its chart. The unit is the label `unit`, or the entry of the metric in
// `units` in the metadata of the device.
export function partsOf(series, metadata) {
  const { name, labels } = parseSeries(series), own = metadata?.units?.[name];
  const unit = labels.unit ?? (typeof own === "string" ? own : undefined);
  return { name, labels, unit, key: unit ? `unit ${unit}` : `metric ${name}` };
}

// The limits of a metric, from `limits` in the metadata of the device; undefined if there are none or they are invalid.
export function limitsOf(name, metadata) {
  const limits = isObject(metadata?.limits) && Object.hasOwn(metadata.limits, name) ? metadata.limits[name] : undefined;
  const isLimit = isObject(limits) && Object.keys(limits).length > 0
    && Object.entries(limits).every(([key, value]) => ["min", "max"].includes(key) && typeof value === "number")
    && !(limits.min > limits.max);
  return isLimit ? limits : undefined;
}

// Whether a value of JSON is an object, and no array.
export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// Whether `kind` in the metadata says that a metric is a counter: `"counter"`, or `{"METRIC": "counter"}`.
export const isCounter = (name, metadata) => (isObject(metadata?.kind) ? metadata.kind[name] : metadata?.kind) === "counter";

// A line with fewer values does not count as growing: a few values may grow by chance. Readings have to grow for most of
// a day, as many things grow for some hours of it, and through so many values, as a setpoint grows by a few steps.
const GROWING_VALUES = 12, GROWING_TIME = 20 * HOUR;

// Whether the values of a line of steps or of readings grow, and never become smaller.
export function onlyGrows({ ts, mean, min = mean, max = mean, isEarlier }) {
  if (isEarlier || min.length < GROWING_VALUES || !(max.at(-1) > min[0])) return false;
  if (min === mean && (new Set(mean).size < GROWING_VALUES || ts.at(-1) - ts[0] < GROWING_TIME)) return false;
  return min.every((value, at) => at === 0 || value >= max[at - 1]);
}

// The labels of a series as words. The unit is left out, because the chart shows it.
export function labelText(labels) {
  return Object.entries(labels).filter(([key]) => key !== "unit").map(([key, value]) => `${key}=${value}`).join(", ");
}

// The steps of rollups, with their lengths.
export const STEPS = [
  ["1m", MINUTE], ["2m", 2 * MINUTE], ["5m", 5 * MINUTE], ["10m", 10 * MINUTE], ["15m", 15 * MINUTE],
  ["30m", 30 * MINUTE], ["1h", HOUR], ["2h", 2 * HOUR], ["6h", 6 * HOUR], ["8h", 8 * HOUR], ["12h", 12 * HOUR], ["1d", DAY],
  ["1w", 7 * DAY], ["1mo", 30 * DAY],
];

// The possible comparisons of a chart, by the parameter `compare` of the address and of the query.
export const COMPARISONS = { "-1d": "a day earlier", "-7d": "a week earlier", "-28d": "four weeks earlier", "-1y": "a year earlier" };

const MAX_STEPS = 750, MAX_BARS = 62;

// The shortest step that suits a range. The server makes steps below an hour from readings, so only short ranges have
// them.
export function stepFor(length) {
  const suits = ([, step]) => length / step <= MAX_STEPS && (step >= HOUR || length <= 2 * DAY);
  return (STEPS.find(suits) ?? STEPS.at(-1))[0];
}

// The shortest step of bars that suits a range.
export function stepOfBars(length) {
  return (STEPS.find(([, step]) => length / step <= MAX_BARS) ?? STEPS.at(-1))[0];
}

// The offset of steps in an address, such as `6h`, if it is shorter than the step.
export function offsetOf(params, step) {
  const offset = lengthOf(params.get("offset"));
  return offset < lengthOfStep(step) && lengthOfStep(step) <= DAY ? params.get("offset") : undefined;
}

// The comparison in an address, if it suits the step: steps of months are compared with a year earlier, others are not.
export function comparisonOf(params, step) {
  const compare = params.get("compare");
  return compare && compare.endsWith("y") === step.endsWith("mo") ? compare : undefined;
}

export const lengthOfStep = (step) => STEPS.find(([name]) => name === step)?.[1] ?? lengthOf(step) ?? HOUR;

// The range that an address names: `range=24h`, or `from` and `to`.
export function rangeOf(params, now) {
  const from = Date.parse(params.get("from") ?? ""), to = Date.parse(params.get("to") ?? "");
  if (from < to) return { from, to, isLive: false };
  const length = lengthOf(params.get("range")) ?? DAY;
  return { from: now - length, to: now, isLive: true, name: params.get("range") ?? "24h" };
}

// The lines of rollups: for each device and series the columns `ts`, `mean`, `min`, `max`, `counts`, and the count of
// all. Lines mostly share their instants. So an instant with the same text as in the line before is not parsed again.
export function linesOfRollups(devices) {
  const lines = [];
  let points = [], ts = [];
  for (const { deviceId, metrics } of devices) {
    for (const series of Object.keys(metrics)) {
      const [before, known] = [points, ts];
      points = withReadings(metrics[series]);
      ts = points.map(({ ts }, at) => (before[at]?.ts === ts ? known[at] : Date.parse(ts)));
      lines.push({ device: deviceId, series, ts, mean: column(points, "avg"), min: column(points, "min"), max: column(points, "max"), counts: column(points, "count"), count: total(points), last: points.at(-1)?.last },
        ...earlierLine(deviceId, series, metrics[series], "avg"));
    }
  }
  return lines;
}

// Leaves out points without readings, which the answer has only for their comparison.
const withReadings = (points) => (points[0]?.compared ? points.filter(({ count }) => count > 0) : points);

// A field of each point.
const column = (points, name) => points.map((point) => point[name]);

// The number of readings of points or lines.
export const total = (parts) => parts.reduce((sum, { count }) => sum + count, 0);

// The line of the earlier steps with which the answer compares a series, if it does. It has no band: `lows` and `highs`
// are for its summary.
function earlierLine(device, series, points, name, isSteps = false) {
  if (!points[0]?.compared) return [];
  const found = points.filter(({ compared }) => compared.count > 0);
  const values = column(found, "compared");
  const line = { device, series, isEarlier: true, isSteps, ts: found.map(({ ts }) => Date.parse(ts)), mean: column(values, name), count: total(values), last: values.at(-1)?.last };
  return [isSteps ? line : { ...line, lows: column(values, "min"), highs: column(values, "max"), counts: column(values, "count") }];
}

// The lines of the increases of counters. The increase is in the column `mean`.
export function linesOfIncreases(devices) {
  return devices.flatMap(({ deviceId, metrics }) => Object.entries(metrics).flatMap(([series, points]) => {
    const own = withReadings(points);
    const line = { device: deviceId, series, isBars: true, ts: own.map(({ ts }) => Date.parse(ts)), mean: column(own, "increase"), count: total(own) };
    return [line, ...earlierLine(deviceId, series, points, "increase", true)];
  }));
}

// The lines of readings. The value is in the column `mean`.
export function linesOfReadings(pages) {
  return pages.flatMap(({ deviceId, readings }) => {
    const lines = new Map();
    for (const { ts, values } of readings) {
      const instant = Date.parse(ts);
      for (const [series, value] of Object.entries(values)) {
        let line = lines.get(series);
        if (!line) lines.set(series, line = { device: deviceId, series, ts: [], mean: [], count: 0 });
        line.ts.push(instant);
        line.mean.push(value);
        line.count++;
      }
    }
    return [...lines.values()].sort((one, other) => (one.series < other.series ? -1 : 1));
  });
}

// Sorts lines into charts: one for each unit, and one for each metric without a unit. `devices` are those that have the
// metrics of the chart, in any unit.
export function chartsOf(lines, devices) {
  const order = new Map(devices.map((device, at) => [device.deviceId, at]));
  const charts = new Map();
  for (const line of lines) {
    const { metadata } = devices[order.get(line.device)] ?? {};
    const { name, labels, unit, key } = partsOf(line.series, metadata);
    const chart = charts.get(key) ?? { key, unit, names: new Set(), lines: [], limits: new Set() };
    chart.names.add(name);
    if (!line.isBars) Object.values(limitsOf(name, metadata) ?? {}).forEach((limit) => chart.limits.add(limit));
    chart.lines.push({ ...line, name, text: labelText(labels) });
    charts.set(key, chart);
  }
  const all = [...charts.values()].flatMap((chart) => chart.lines);
  for (const chart of charts.values()) {
    chart.devices = new Set(all.filter(({ name }) => chart.names.has(name)).map(({ device }) => device));
    chart.lines.sort((one, other) => order.get(one.device) - order.get(other.device) || (one.series < other.series ? -1 : one.series > other.series ? 1 : 0));
    chart.names = [...chart.names];
    chart.limits = [...chart.limits];
    chart.isBars = chart.lines.some((line) => line.isBars);
    chart.title = chart.names.join(", ");
  }
  return [...charts.values()].sort((one, other) => (one.title < other.title ? -1 : 1));
}

// A line has a gap between neighbours that are this many times farther apart than usual.
const GAP = 3.5;

// The distance of neighbours, in milliseconds, beyond which a line has a gap.
function gapOf(ts, step) {
  if (ts.length < 3) return step ? 1.5 * step : Infinity;
  const distances = [];
  const every = Math.max(1, Math.floor(ts.length / 500)); // enough for a median
  for (let at = 1; at < ts.length; at += every) distances.push(ts[at] - ts[at - 1]);
  const median = distances.sort((one, other) => one - other)[(distances.length - 1) >> 1];
  return step ? Math.max(1.5 * step, median > 1.5 * step ? GAP * median : 0) : GAP * median;
}

// The columns of a line, with a point without a value in each gap.
export function withGaps(line, step) {
  const gap = gapOf(line.ts, step);
  const columns = [line.mean, ...(line.min ? [line.min, line.max] : [])];
  if (!line.ts.some((instant, at) => instant - line.ts[at - 1] > gap)) return [line.ts, ...columns];
  const ts = [], filled = columns.map(() => []);
  for (let at = 0; at < line.ts.length; at++) {
    if (at > 0 && line.ts[at] - line.ts[at - 1] > gap) {
      ts.push(line.ts[at - 1] + (step ?? Math.floor(gap / GAP)));
      for (const column of filled) column.push(null);
    }
    ts.push(line.ts[at]);
    filled.forEach((column, nth) => column.push(columns[nth][at]));
  }
  return [ts, ...filled];
}

// The smallest, mean and largest value of a whole line; undefined if it has no values. The mean is that of all readings,
// or of all steps if the line has no counts.
export function summary({ mean, min = mean, max = mean, lows = min, highs = max, counts }) {
  let [low, high, sum, number] = [Infinity, -Infinity, 0, 0];
  for (let at = 0; at < mean.length; at++) {
    if (lows[at] < low) low = lows[at];
    if (highs[at] > high) high = highs[at];
    if (mean[at] === null) continue;
    const count = counts?.[at] ?? 1;
    sum += count * mean[at];
    number += count;
  }
  return number === 0 ? undefined : { low, high, mean: sum / number };
}
