// Makes elements and texts of the page. Texts are always text nodes, never markup.

// Makes an element. Names such as `onclick` add listeners; `value`, `checked` and `disabled` set properties; all others
// set attributes.
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

// Replaces the children of an element. If the focused child has a `data-key`, the new child with the same
// key gets the focus.
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

// Copies a text to the clipboard, also if the page was loaded by plain HTTP.
async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = h("textarea", { class: "visually-hidden", "aria-hidden": "true", value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// A button that copies a text, and then says "Copied".
export function copyButton(text) {
  const button = h("button", { type: "button", class: "copy", onclick: async () => {
    await copy(text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2_000);
  } }, "Copy");
  return button;
}

// Formats of numbers, in the language of the browser.
const DIGITS = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 15, useGrouping: false });
const GROUPED = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const MARK = DIGITS.formatToParts(1.5).find(({ type }) => type === "decimal").value;

// A value with 12 digits, or with all before its decimal mark: more would show the rounding of binary fractions.
export const exact = (value) => rounded(value, 12);

// A value with five digits, which fit into a table, or with all before its decimal mark. It has more if values that are
// `distance` apart would look the same.
export const short = (value, distance) => rounded(value, 5, distance);

// Writes a value with at least `digits` significant digits, and not fewer than it has before its decimal mark.
function rounded(value, digits, distance = Infinity) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e15 || size < 1e-6)) return value.toExponential(4).replace("e+", "e").replace(".", MARK);
  const power = Math.floor(Math.log10(size || 1));
  const apart = Math.min(power + 2 - Math.floor(Math.log10(distance)), 12);
  return DIGITS.format(Number(value.toPrecision(Math.max(digits, power + 1, apart))));
}

// A number of things, with separators of thousands.
export const count = (value) => GROUPED.format(value);

// A number with one digit behind its decimal mark.
export const tenths = (value) => TENTHS.format(value);

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value) {
  const power = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), BYTES.length - 1);
  const scaled = value / 2 ** (10 * power);
  return `${(power === 0 || scaled >= 100 ? count : tenths)(scaled)} ${BYTES[power]}`;
}

// The query parameters of files for spreadsheets, without those of times. CSV has the decimal mark of the browser's
// language, and its delimiter: a semicolon where the mark is a comma, and in Switzerland.
const isSwiss = DIGITS.resolvedOptions().locale.includes("-CH");
export const csvForm = new URLSearchParams({ format: "csv", bom: "1", ...(MARK === "," ? { delimiter: ";", decimal: "," } : isSwiss && { delimiter: ";" }) });
export const workbookForm = new URLSearchParams({ format: "xlsx" });
