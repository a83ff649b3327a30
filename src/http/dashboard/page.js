// Elements of the page. Texts are always text nodes, never markup.

// Makes an element. `onclick` and the like are listeners, `value` and `checked` properties, the rest attributes.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...present(children));
  return element;
}

// Replaces the children of an element. An element with the same `data-key` keeps the focus.
export function fill(parent, ...children) {
  const focused = document.activeElement;
  const key = parent.contains(focused) ? focused.dataset.key : undefined;
  parent.replaceChildren(...present(children));
  if (key) parent.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  return parent;
}

function present(children) {
  return children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false);
}

// Whether two lists have the same items in the same order.
export const areSame = (one, other) => one.length === other.length && one.every((item, nth) => item === other[nth]);

// Copies a text, also where the page is not from a secure context.
async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = h("textarea", { class: "visually-hidden", "aria-hidden": "true", value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// A button that copies a text and says so.
export function copyButton(text) {
  const button = h("button", { type: "button", class: "copy", onclick: async () => {
    await copy(text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2_000);
  } }, "Copy");
  return button;
}

// Numbers are in the language of the browser.
const DIGITS = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 12, useGrouping: false });
const SHORT = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 5, useGrouping: false });
const GROUPED = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });

// A value with all its digits; 12 of them hide the noise of binary fractions.
export const exact = (value) => plain(value, DIGITS);

// A value with the digits that a table has room for.
export const short = (value) => plain(value, SHORT);

function plain(value, format) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e15 || size < 1e-6) ? value.toExponential(4).replace("e+", "e") : format.format(value);
}

// A number of things, with separators.
export const count = (value) => GROUPED.format(value);

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value) {
  const power = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), BYTES.length - 1);
  const scaled = value / 2 ** (10 * power);
  return `${scaled.toFixed(power === 0 || scaled >= 100 ? 0 : 1)} ${BYTES[power]}`;
}

// How a spreadsheet in the language of the browser reads CSV, and a workbook, which needs no such form.
const mark = new Intl.NumberFormat().formatToParts(1.5).find(({ type }) => type === "decimal").value;
export const csvForm = new URLSearchParams({ format: "csv", bom: "1", times: "local", ...(mark === "," ? { delimiter: ";", decimal: "," } : {}) });
export const workbookForm = new URLSearchParams({ format: "xlsx" });
