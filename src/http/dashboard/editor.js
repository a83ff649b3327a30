// The form that sets the name, the place and the units of a device. The token needs the scope `metadata`.

import { patch } from "./api.js";
import { fill, h } from "./page.js";
import { isObject, parseSeries } from "./series.js";

// `saved` is called when the server has the change.
export function editor(device, isOpen, saved) {
  const path = `/v1/devices/${encodeURIComponent(device.deviceId)}/metadata`;
  const body = h("div"), said = h("p", { class: "muted", role: "status" });
  // Sends an empty patch, which changes nothing. Its answer says whether the token may change metadata.
  const open = () => patch(path, {}).then((current) => fill(body, form(current)), (failure) => fill(body, h("p", { class: "muted" }, why(failure))));
  const element = h("details", { class: "editor", "data-device": device.deviceId, open: isOpen, ontoggle: () => element.open && !body.hasChildNodes() && open() },
    h("summary", { "data-key": "edit" }, "Name, place, units"), body);
  // Takes what the server now says about the device. The next form has a field for each of its metrics.
  element.update = (next) => { device = next; };
  return element;

  function form({ metadata, tag }) {
    fill(said);
    const text = (value) => (typeof value === "string" ? value : "");
    const units = isObject(metadata.units) ? metadata.units : {};
    const input = (label, key, value, maxlength) => h("label", {}, h("span", {}, label), h("input", { value, maxlength, autocomplete: "off", "data-key": `edit ${key}` }));
    const [name, place] = ["name", "place"].map((key) => input(key === "name" ? "Name" : "Place", key, text(metadata[key]), 128));
    const metrics = [...new Set(device.metrics.filter((series) => !parseSeries(series).labels.unit).map((series) => parseSeries(series).name))];
    const ofMetrics = metrics.map((metric) => [metric, input(`Unit of ${metric}`, `unit ${metric}`, text(units[metric]), 32)]);
    const valueOf = (label) => label.querySelector("input").value.trim();
    // Other notices stay: they are still true, and one has a button.
    const oninput = () => said.textContent === "Saved." && fill(said);
    return h("form", { oninput, onsubmit: async (event) => {
      event.preventDefault();
      const changes = {};
      for (const [key, label] of [["name", name], ["place", place]]) {
        if (valueOf(label) !== text(metadata[key])) changes[key] = valueOf(label) || null;
      }
      const changed = ofMetrics.filter(([metric, label]) => valueOf(label) !== text(units[metric]));
      try {
        if (changed.length > 0) {
          // The units of an operator replace all units of the device, so the form sends all of them, also those that the
          // device has sent meanwhile. The server refuses units that are no texts.
          const { units: current } = (await patch(path, {}, tag)).metadata;
          const known = Object.entries(isObject(current) ? current : {}).map(([metric, unit]) => [metric, text(unit)]);
          const all = [...known, ...changed.map(([metric, label]) => [metric, valueOf(label)])];
          changes.units = Object.fromEntries(all.map(([metric, unit]) => [metric, unit || null]));
        }
        fill(body, form(await patch(path, changes, tag)));
        fill(said, "Saved.");
        saved();
      } catch (failure) {
        fill(said, why(failure), failure.kind === "changed" && [" ", h("button", { type: "button", "data-key": "edit reload", onclick: open }, "Show what is stored")]);
      }
    } }, name, place, ofMetrics.map(([, label]) => label), h("button", { type: "submit", "data-key": "edit save" }, "Save"), said);
  }
}

function why(failure) {
  if (failure.kind === "forbidden") return "This token may not change metadata: that takes the scope metadata.";
  if (failure.kind === "changed") return "Not saved: this device was changed elsewhere since you opened the form.";
  return `Not saved: ${failure.detail ?? failure.message}.`;
}
