// One chart: the plot, the values at the cursor, and the table.

import { changed, go, repeated } from "./address.js";
import { save, token } from "./api.js";
import { csvForm, exact, fill, h, short, workbookForm } from "./page.js";
import { Plot } from "./plot.js";
import { COMPARISONS, lengthOfStep, summary } from "./series.js";
import { failureTitle, notice } from "./states.js";
import { stamp, zone } from "./time.js";

// The number of rows that the table shows at first.
const ROWS = 100;

export function makeCard(first, handlers) {
  let group = first, range, query, step, params, titles, cursor, rows = ROWS;
  const title = h("h2", {}), links = h("span", { class: "links" }), failed = h("div", { "aria-live": "polite" });
  const host = h("div", { class: "plot", tabindex: "0", role: "slider", "aria-orientation": "horizontal" });
  const legend = h("table", { class: "legend" });
  const body = h("tbody"), table = h("details", { class: "data" });
  const keys = h("p", { class: "keys muted" }, "Arrow keys move, + and − zoom, page up and down shift, 0 returns to now.");
  const element = h("section", { class: "card chart", "data-chart": first.key }, h("header", {}, title, links), failed, host, keys, legend, table);
  const plot = new Plot(host, { ...handlers, cursor: (found) => { cursor = found; drawValues(); } });
  const label = (line) => [titles.size > 1 || !line.text ? titles.get(line.device) : "", group.names.length > 1 ? line.name : "", line.text,
    line.isEarlier && (COMPARISONS[params.get("compare")] ?? params.get("compare"))].filter(Boolean).join(" · ");

  table.addEventListener("toggle", () => {
    if (table.open !== params.has("table")) go("chart", changed(params, { table: table.open ? "1" : undefined }), { replace: true });
    drawTable();
  });

  // `nextQuery` has the step of the chart, as a name and as query parameters, and whether the viewer's time zone has the
  // same steps; undefined if the chart shows readings. `nextTitles` has the title of each device by its ID.
  function show(next, nextRange, nextQuery, nextParams, nextTitles) {
    if (nextParams !== params) fill(failed);
    [group, range, query, params, titles] = [next, nextRange, nextQuery, nextParams, nextTitles];
    step = query?.step;
    const unit = group.unit ? h("span", { class: "unit" }, group.unit) : undefined;
    fill(title, group.title, unit && " ", unit, group.isBars && h("span", { class: "unit" }, ` increase per ${step}`));
    drawLinks();
    drawLegend();
    plot.show(group.lines, range, step && lengthOfStep(step), group.limits);
    host.setAttribute("aria-label", `${group.isBars ? "Increase" : "Chart"} of ${group.title}${group.unit ? ` in ${group.unit}` : ""}, ${step ? `steps of ${step}` : "readings"}`);
    drawValues();
    table.open = params.has("table");
    drawTable();
  }

  function drawLinks() {
    const selection = `from=${Math.round(range.from)}&to=${Math.round(range.to)}${repeated("device", [...titles.keys()])}${repeated("metric", group.names)}`;
    const local = `&times=local&tz=${encodeURIComponent(zone)}`;
    const link = (text, path, name) => h("a", { href: path, download: name, "data-key": `file ${name}`, onclick: (event) => {
      if (!token.get()) return;
      event.preventDefault();
      fill(failed);
      save(path, name).catch((failure) => fill(failed, notice("bad", `${failureTitle(failure)}. The file ${name} was not saved.`)));
    } }, text);
    const columns = group.isBars ? "&fn=count,increase" : "";
    const others = (names, isOn) => [...params.getAll(names).filter((name) => !group.names.includes(name)), ...(isOn ? group.names : [])];
    const toggle = h("button", { type: "button", class: "quiet", "data-key": `bars ${group.key}`, onclick: () =>
      go("chart", changed(params, { increase: others("increase", !group.isBars), values: others("values", group.isBars) })) },
    group.isBars ? "Show values" : "Show increase");
    const files = (title, form, extension) => h("span", { class: "files" }, h("span", { class: "muted" }, `${title}: `),
      link("readings", `/v1/readings?${selection}&${form}${local}`, `readings.${extension}`),
      step && [" ", link(`steps of ${step}${query.isLocal ? "" : " (UTC)"}`, `/v1/rollups?${selection}&${form}${query.parameters}${query.isLocal ? local : ""}${columns}`, `rollups.${extension}`)]);
    fill(links, toggle, files("CSV", csvForm, "csv"), files("Excel", workbookForm, "xlsx"));
  }

  function drawLegend() {
    const missing = [...titles].filter(([id]) => !group.devices.has(id));
    fill(legend,
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, titles.size > 1 ? "Device" : "Series"), h("th", { scope: "col", class: "number at" }, "Last"),
        ["Min", "Mean", "Max"].map((name) => h("th", { scope: "col", class: "number" }, name)))),
      h("tbody", {}, group.lines.map((line) => {
        const whole = summary(line);
        const cell = (name, text) => h("td", { class: "number", "data-name": name }, text);
        const total = group.isBars && whole && h("small", { class: "muted" }, ` ${exact(line.mean.reduce((sum, value) => sum + value, 0))} in all`);
        return h("tr", { class: line.isEarlier ? "earlier" : "" }, h("th", { scope: "row" }, h("i", { class: `swatch c${line.colour}${line.dash || line.isEarlier ? " dashed" : ""}` }), label(line), total),
          h("td", { class: "number at" }), whole ? [cell("Min", exact(whole.low)), cell("Mean", mean(whole.mean, whole.low, whole.high)), cell("Max", exact(whole.high))] : h("td", { colspan: 3 }));
      }), missing.map(([, name]) => h("tr", { class: "muted" }, h("th", { scope: "row" }, name), h("td", { colspan: 4 }, "no readings in this range")))),
      group.hidden > 0 && h("caption", {}, `${group.hidden} more series are not shown: choose fewer devices or metrics.`));
  }

  // Shows the values at the cursor, or the last values.
  function drawValues() {
    const found = cursor ?? { values: group.lines.map(lastOf) };
    legend.querySelector("thead .at")?.replaceChildren(cursor ? stamp(cursor.instant, true) : "Last");
    const cells = legend.querySelectorAll("tbody .at");
    const texts = found.values.map(valueText);
    cells.forEach((cell, nth) => {
      const { value, min, max } = found.values[nth] ?? {};
      const hasBand = (min ?? null) !== null;
      fill(cell, hasBand ? mean(value, min, max) : exact(value), hasBand && h("small", {}, ` ${exact(min)} … ${exact(max)}`));
    });
    const said = group.lines.map((line, nth) => `${label(line)} ${texts[nth]}`).join(", ");
    host.setAttribute("aria-valuemin", String(Math.round(range?.from ?? 0)));
    host.setAttribute("aria-valuemax", String(Math.round(range?.to ?? 0)));
    host.setAttribute("aria-valuenow", String(Math.round(cursor?.instant ?? range?.to ?? 0)));
    host.setAttribute("aria-valuetext", cursor ? `${stamp(cursor.instant, true)}: ${said}` : `last: ${said}`);
  }

  function drawTable() {
    const { lines } = group;
    if (!table.open) {
      if (!table.firstChild) fill(table, h("summary", {}, "Data table"));
      return;
    }
    const byInstant = new Map();
    lines.forEach((line, nth) => line.ts.forEach((instant, at) => {
      const row = byInstant.get(instant) ?? [];
      row[nth] = { value: line.mean[at], min: line.min?.[at], max: line.max?.[at] };
      byInstant.set(instant, row);
    }));
    const instants = [...byInstant.keys()].sort((one, other) => other - one);
    fill(body, instants.slice(0, rows).map((instant) => h("tr", {}, h("th", { scope: "row" }, stamp(instant, !step)),
      lines.map((line, nth) => h("td", { class: "number" }, valueText(byInstant.get(instant)[nth]))))));
    const more = instants.length > rows && h("button", { type: "button", "data-key": "more", onclick: () => { rows *= 4; drawTable(); } },
      `Show more of ${instants.length} rows`);
    const summaryLine = table.querySelector("summary") ?? h("summary", {}, "Data table");
    const scroll = table.querySelector(".scroll") ?? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${group.title}` });
    fill(scroll, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, step ? `Step of ${step} from` : "Time"),
      lines.map((line) => h("th", { scope: "col", class: "number" }, label(line))))), body), more);
    if (!scroll.isConnected) fill(table, summaryLine, scroll);
  }

  return {
    element,
    show,
    move(next) {
      range = next;
      plot.show(group.lines, range, step && lengthOfStep(step), group.limits);
    },
    stop: () => plot.stop(),
  };
}

// The text of a mean. Its digits are enough to tell it from the smallest and the largest value.
const mean = (value, min, max) => short(value, max - min);

function valueText(found) {
  if (!found || (found.value ?? null) === null) return "–";
  const hasBand = (found.min ?? null) !== null;
  return hasBand ? `${mean(found.value, found.min, found.max)} (${exact(found.min)} … ${exact(found.max)})` : exact(found.value);
}

// The last value of a line: of rollups `line.last`, else the last point.
function lastOf(line) {
  if (line.last) return line.last;
  const at = line.ts.length - 1;
  return at < 0 ? undefined : { value: line.mean[at], min: line.min?.[at], max: line.max?.[at] };
}
