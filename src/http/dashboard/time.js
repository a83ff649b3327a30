// Times: the clock of the server, and texts in the time zone of the viewer.
//
// Ages and ranges count by the clock of the server, which the header `Date` of each answer shows. So a wrong clock of
// the viewer's machine changes nothing, except that the page says that it is wrong.

import { h } from "./page.js";

export const SECOND = 1_000, MINUTE = 60_000, HOUR = 3_600_000, DAY = 86_400_000;

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

// How far the server's clock is ahead of the viewer's, in milliseconds.
let ahead = 0;

// Reads the server's clock in the header `Date` of an answer. It has whole seconds, so a difference of up to two
// seconds counts as none.
export function observe(date, sent, received) {
  const server = Date.parse(date ?? "");
  if (Number.isNaN(server)) return;
  const difference = server + SECOND / 2 - (sent + received) / 2;
  ahead = Math.abs(difference) <= 2 * SECOND + (received - sent) / 2 ? 0 : difference;
}

export const clockDifference = () => ahead;

// The time of the server, in milliseconds.
export const now = () => Date.now() + ahead;

const UNITS = { s: SECOND, m: MINUTE, h: HOUR, d: DAY, w: 7 * DAY };

// The milliseconds of `90s`, `15m`, `24h`, `7d` or `1w`; undefined for other texts.
export function lengthOf(text) {
  const [, number, unit] = /^(\d{1,6})([smhdw])$/.exec(text ?? "") ?? [];
  return number === undefined || Number(number) === 0 ? undefined : Number(number) * UNITS[unit];
}

// A length in words, to the nearest whole number of its largest unit.
export function inWords(length) {
  const units = [[365 * DAY, "year"], [DAY, "day"], [HOUR, "hour"], [MINUTE, "minute"], [SECOND, "second"]];
  const [unit, name] = units.find(([unit]) => length >= unit) ?? units.at(-1);
  const count = Math.round(length / unit);
  return `${count} ${name}${count === 1 ? "" : "s"}`;
}

// The age of an instant: `3 s ago`, `5 min ago`, `2 h ago`, `4 d ago`, or `in 5 min` in the future.
export function age(instant) {
  const length = now() - instant;
  const text = brief(Math.abs(length));
  return length < -2 * SECOND ? `in ${text}` : `${text} ago`;
}

// A length in its largest unit: `3 s`, `5 min`, `2 h`, `4 d`.
export function brief(length) {
  if (length < MINUTE) return `${Math.floor(length / SECOND)} s`;
  if (length < HOUR) return `${Math.floor(length / MINUTE)} min`;
  if (length < 2 * DAY) return `${Math.floor(length / HOUR)} h`;
  return `${Math.floor(length / DAY)} d`;
}

// Formats in the language of the browser. Three formats of each kind: with minutes, with seconds, with milliseconds.
const DAY_PARTS = { year: "numeric", month: "2-digit", day: "2-digit" };
const CLOCK_PARTS = [{}, { second: "2-digit" }, { second: "2-digit", fractionalSecondDigits: 3 }].map((parts) => ({ hour: "2-digit", minute: "2-digit", ...parts }));
const formatsOf = (more) => CLOCK_PARTS.map((parts) => new Intl.DateTimeFormat(undefined, { ...more, ...parts }));
const CLOCKS = formatsOf({}), STAMPS = formatsOf(DAY_PARTS);
const YEAR = new Intl.DateTimeFormat(undefined, { year: "numeric" }), MONTH = new Intl.DateTimeFormat(undefined, { month: "short" });
const DAY_OF_MONTH = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

// Writes an instant with minutes. Seconds follow if they are wanted or not zero. Milliseconds follow if
// seconds are wanted and the milliseconds are not zero.
function written(formats, instant, withSeconds) {
  const [hasSeconds, hasRest] = [instant % MINUTE !== 0, instant % SECOND !== 0];
  return formats[withSeconds && hasRest ? 2 : withSeconds || hasSeconds ? 1 : 0].format(instant);
}

// The time of day, as `written` writes it.
export const clock = (instant, withSeconds = false) => written(CLOCKS, instant, withSeconds);

// The day and the time of day, as `written` writes them.
export const stamp = (instant, withSeconds = false) => written(STAMPS, instant, withSeconds);

// The value of an `<input type="datetime-local">`.
export const toInput = (instant) => new Date(instant - new Date(instant).getTimezoneOffset() * MINUTE).toISOString().slice(0, 16);

// The texts at the time axis: the time of day, and where the day changes also the day.
export function axisTexts(instants, increment) {
  let before;
  return instants.map((instant) => {
    const date = new Date(instant);
    const days = DAY_OF_MONTH.format(date);
    const isNewDay = before === undefined || before.toDateString() !== date.toDateString();
    const isNewYear = before === undefined || before.getFullYear() !== date.getFullYear();
    before = date;
    if (increment >= 28 * DAY) return MONTH.format(date) + (isNewYear ? `\n${YEAR.format(date)}` : "");
    if (increment >= DAY) return days + (isNewYear ? `\n${YEAR.format(date)}` : "");
    return clock(instant, increment < MINUTE) + (isNewDay ? `\n${days}` : "");
  });
}

// An element with the age of an instant. `tick` keeps it up to date.
export function ageElement(instant) {
  const element = h("time", { datetime: new Date(instant).toISOString(), title: stamp(instant, true) }, age(instant));
  element.dataset.instant = instant;
  return element;
}

// Brings all ages on the page up to date.
export function tick() {
  for (const element of document.querySelectorAll("[data-instant]")) {
    const text = age(Number(element.dataset.instant));
    if (element.textContent !== text) element.textContent = text;
  }
}
