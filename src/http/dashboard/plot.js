// One plot, drawn by uPlot: with the colours of the page, a band around each mean, and keys of the keyboard.

import { withGaps } from "./series.js";
import { axisTexts, clock } from "./time.js";
import { short } from "./page.js";

const { uPlot } = window;

// The number of colours of lines. Lines of the same colour differ by their dashes.
export const COLOURS = 8;
export const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

// The longest distance from the pointer to a value that the pointer shows, in pixels.
const REACH = 40;

// About half the width of a time of day at the axis, in pixels. It differs by language.
const HALF_CLOCK = Math.ceil(clock(0, true).length * 3.5);

const dark = matchMedia("(prefers-color-scheme: dark)");
const style = getComputedStyle(document.documentElement);
const colours = new Map(); // a cache: after each change of the page, a browser computes styles anew
dark.addEventListener("change", () => colours.clear());

function colour(name) {
  if (!colours.has(name)) colours.set(name, style.getPropertyValue(name).trim());
  return colours.get(name);
}

export class Plot {
  #host; #handlers; #fromZero; #plot; #shape; #lines = []; #range; #step; #limits = []; #data;
  #size = new ResizeObserver(() => this.#resize());
  #redraw = () => this.#plot?.redraw(false);

  // `handlers` has `zoom(from, to)`, `reset()` and `cursor(found)`: see `#pointed`.
  constructor(host, handlers, { fromZero = false } = {}) {
    [this.#host, this.#handlers, this.#fromZero] = [host, handlers, fromZero];
    this.#size.observe(host);
    dark.addEventListener("change", this.#redraw);
    host.addEventListener("keydown", (event) => this.#key(event));
    host.addEventListener("blur", () => this.#leave());
  }

  // Shows lines. Each value in `limits` is a line across the plot.
  show(lines, range, step, limits = []) {
    [this.#lines, this.#range, this.#step, this.#limits] = [lines, range, step, limits];
    const tables = lines.map((line) => withGaps(line, step));
    this.#data = tables.length ? uPlot.join(tables) : [[]];
    const shape = lines.map((line) => `${line.colour}/${line.dash}${line.min ? "b" : ""}${line.isBars ? "i" : ""}${line.isEarlier ? "e" : ""}`).join();
    if (this.#plot && shape === this.#shape) this.#plot.setData(this.#data);
    else this.#build(shape);
  }

  stop() {
    this.#size.disconnect();
    dark.removeEventListener("change", this.#redraw);
    this.#plot?.destroy();
  }

  // The index of the column in `#data` with the values of the line `nth`.
  #column(nth) {
    return 1 + this.#lines.slice(0, nth).reduce((sum, line) => sum + (line.min ? 3 : 1), 0);
  }

  #build(shape) {
    this.#plot?.destroy();
    this.#shape = shape;
    const series = [{}], bands = [];
    for (const line of this.#lines) {
      const stroke = () => colour(`--line-${line.colour}`);
      const at = series.length;
      if (line.isBars) {
        series.push({ stroke, width: 1, fill: () => `${stroke()}66`, paths: bars, points: { show: false } });
        continue;
      }
      if (line.isEarlier) {
        series.push({ stroke: () => `${stroke()}80`, dash: [4, 4], width: 1.4, paths: line.isSteps ? steps : undefined, points: { show: sparse, size: 3, filter: alone } });
        continue;
      }
      series.push({ stroke, dash: DASHES[line.dash], width: 1.6, points: { show: sparse, size: 4, filter: alone } });
      if (line.min) {
        const bound = { stroke: "transparent", width: 0, points: { show: false } };
        series.push(bound, { ...bound });
        bands.push({ series: [at + 2, at + 1], fill: () => `${stroke()}2b` });
      }
    }
    const text = () => colour("--muted");
    const lines = { stroke: () => colour("--grid"), width: 1 };
    const font = "12px system-ui, sans-serif";
    this.#plot = new uPlot({
      ...this.#measure(),
      ms: 1,
      padding: [null, HALF_CLOCK, null, null],
      legend: { show: false },
      cursor: {
        y: false,
        sync: { key: "charts", setSeries: false },
        drag: { x: true, y: false, setScale: false, dist: 6 },
        bind: { dblclick: () => () => { this.#handlers.reset(); return null; } },
        dataIdx: nearest,
        points: { show: (plot, at) => !this.#isBound(at) && point(), size: 8,
          fill: (plot, at) => plot.series[at].stroke(plot, at), stroke: () => colour("--card"), width: 2 },
      },
      scales: {
        x: { time: true, auto: false, range: () => [this.#range.from, this.#range.to] },
        y: { range: (plot, low, high) => this.#valuesShown(low, high) },
      },
      axes: [
        { stroke: text, grid: lines, ticks: { ...lines, size: 5 }, font, size: 44, space: 2 * HALF_CLOCK + 12,
          values: (plot, splits, axis, space, increment) => axisTexts(splits, increment) },
        { stroke: text, grid: lines, ticks: { show: false }, font, gap: 6, size: widthOf,
          values: (plot, splits, axis, space, increment) => splits.map((value) => short(value, increment)) },
      ],
      series,
      bands,
      hooks: {
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 6) return;
          this.#handlers.zoom(...[left, left + width].map((at) => Math.round(plot.posToVal(at, "x"))));
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
        setCursor: [() => this.#pointed()],
        draw: [() => this.#drawLimits()],
      },
    }, this.#data, this.#host);
  }

  // The range of the value axis. It includes limits that are near.
  #valuesShown(low, high) {
    if (low === null) return padded(low, high);
    const length = high - low || Math.abs(high);
    const near = this.#limits.filter((limit) => limit >= low - length && limit <= high + length);
    const fromZero = this.#fromZero || this.#lines.some((line) => line.isBars);
    return padded(Math.min(...near, fromZero ? Math.min(0, low) : low), Math.max(...near, high));
  }

  #drawLimits() {
    const { ctx, bbox } = this.#plot;
    ctx.save();
    ctx.beginPath();
    for (const limit of this.#limits) {
      const y = Math.round(this.#plot.valToPos(limit, "y", true));
      if (y < bbox.top || y > bbox.top + bbox.height) continue;
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
    }
    ctx.strokeStyle = colour("--bad");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.stroke();
    ctx.restore();
  }

  #isBound(at) {
    return !this.#lines.some((line, nth) => this.#column(nth) === at);
  }

  #measure() {
    const width = this.#host.clientWidth || 600;
    const height = document.body.classList.contains("wall") ? this.#host.clientHeight : width < 500 ? 220 : 280;
    return { width, height };
  }

  #resize() {
    const { width, height } = this.#measure();
    if (this.#plot && (width !== this.#plot.width || height !== this.#plot.height)) this.#plot.setSize({ width, height });
  }

  // Tells the handler the instant and the values at the cursor, or nothing if there is no cursor.
  #pointed() {
    const { idx, idxs } = this.#plot.cursor;
    if (idx === null || idx === undefined) return this.#handlers.cursor();
    this.#handlers.cursor({
      instant: this.#data[0][idx],
      values: this.#lines.map((line, nth) => {
        const column = this.#column(nth), at = idxs[column];
        if (at === null || at === undefined) return undefined;
        const [value, min, max] = [0, 1, 2].map((next) => this.#data[column + next]?.[at]);
        return { value, ...(line.min && { min, max }) };
      }),
    });
  }

  // Moves the cursor to the instant at an index of the data.
  #point(index) {
    const instants = this.#data[0];
    const at = Math.min(Math.max(index, 0), instants.length - 1);
    this.#plot.setCursor({ left: this.#plot.valToPos(instants[at], "x"), top: 20 });
  }

  #leave() {
    this.#plot?.setCursor({ left: -10, top: -10 });
  }

  #key(event) {
    if (!this.#plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const { from, to } = this.#range;
    const length = to - from;
    const at = this.#plot.cursor.idx ?? this.#data[0].length;
    const centre = this.#data[0][this.#plot.cursor.idx] ?? (from + to) / 2;
    const zoomed = (factor) => [centre - (centre - from) * factor, centre + (to - centre) * factor].map(Math.round);
    const pace = event.shiftKey ? 10 : 1;
    const actions = {
      ArrowLeft: () => this.#point(at - pace),
      ArrowRight: () => this.#point(at + pace),
      Home: () => this.#point(0),
      End: () => this.#point(this.#data[0].length - 1),
      PageUp: () => this.#handlers.zoom(from - length / 2, to - length / 2),
      PageDown: () => this.#handlers.zoom(from + length / 2, to + length / 2),
      "+": () => this.#handlers.zoom(...zoomed(0.5)),
      "-": () => this.#handlers.zoom(...zoomed(2)),
      0: () => this.#handlers.reset(),
      Escape: () => this.#leave(),
    };
    actions["="] = actions["+"];
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
}

// Bars, and steps, that begin at their instants.
const bars = uPlot.paths.bars({ size: [0.9, Infinity], align: 1 });
const steps = uPlot.paths.stepped({ align: 1 });

// The mark of the cursor on a line.
function point() {
  return Object.assign(document.createElement("div"), { className: "u-cursor-pt" });
}

// Whether a point is drawn at each value: only if they are at least 14 pixels apart.
function sparse(plot, at, first, last) {
  return last - first < plot.bbox.width / devicePixelRatio / 14;
}

// The indexes of values with a gap on both sides. They are drawn as points, as no line goes through them.
function alone(plot, at, isSparse) {
  if (isSparse) return null;
  const values = plot.data[at], found = [];
  let before = null;
  for (let index = 0; index < values.length; index++) {
    if (values[index] === undefined) continue; // another line has this instant
    if (values[index] !== null && before === null) {
      let next = index + 1;
      while (next < values.length && values[next] === undefined) next++;
      if ((values[next] ?? null) === null) found.push(index);
    }
    before = values[index];
  }
  return found;
}

// The index of the value of a line that is nearest to the cursor, as lines need not share their instants.
// Null if no value is within `REACH`.
function nearest(plot, at, index) {
  const values = plot.data[at], instants = plot.data[0];
  if (at === 0 || values === undefined || (values[index] ?? null) !== null) return index;
  const reach = plot.posToVal(REACH, "x") - plot.posToVal(0, "x");
  const near = (next) => next >= 0 && next < values.length && Math.abs(instants[next] - instants[index]) <= reach;
  for (let distance = 1; near(index - distance) || near(index + distance); distance++) {
    for (const next of [index - distance, index + distance]) {
      if (near(next) && (values[next] ?? null) !== null) return next;
    }
  }
  return null;
}

// A range of values with some space around it. If it would begin just below zero, it begins at zero.
function padded(low, high) {
  if (low === null) return [0, 1];
  const space = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  const bottom = low >= 0 && low - space <= 0 ? 0 : low - space;
  return [bottom, high + space];
}

// The width of the texts at the value axis, in pixels.
function widthOf(plot, texts) {
  const longest = Math.max(3, ...(texts ?? []).map((text) => text.length));
  return Math.max(HALF_CLOCK, Math.ceil(longest * 7.2) + 12);
}
