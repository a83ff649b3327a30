// The state of the page, which is in its address: `#/VIEW?PARAMETERS`. Browsers do not send the part behind `#`.

// The view that the address names, and its parameters.
export function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { view: path || "devices", params: new URLSearchParams(query ?? "") };
}

export function href(view, params) {
  const query = String(params ?? "");
  return query ? `#/${view}?${query}` : `#/${view}`;
}

// Goes to a view. With `replace`, the browser's history gets no new entry.
export function go(view, params, { replace = false } = {}) {
  const target = href(view, params);
  if (target === location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", target);
  dispatchEvent(new Event("hashchange"));
}

// The part of a query that gives a key several values: `&device=a&device=b`.
export const repeated = (key, values) => values.map((value) => `&${key}=${encodeURIComponent(value)}`).join("");

// Copies parameters with `changes`: undefined removes a key, a list gives it several values.
export function changed(params, changes) {
  const copy = new URLSearchParams(params);
  for (const [key, value] of Object.entries(changes)) {
    copy.delete(key);
    for (const one of [value ?? []].flat()) copy.append(key, one);
  }
  return copy;
}
