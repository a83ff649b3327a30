// Requests to the HTTP API: the token, conditional requests, and failures by kind.

import { observe } from "./time.js";

const TOKEN = "tidegauge.token";

// The token. The browser keeps it until the tab is closed; with `isRemembered`, until the viewer removes it.
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? localStorage.getItem(TOKEN),
  set: (text, isRemembered) => { token.forget(); (isRemembered ? localStorage : sessionStorage).setItem(TOKEN, text); },
  forget: () => { answers.clear(); sessionStorage.removeItem(TOKEN); localStorage.removeItem(TOKEN); },
};

// A request without a usable answer. `kind` is one of: gone, slow, unauthorized, forbidden, unknown, changed, away,
// busy, refused, failed.
export class Failure extends Error {
  constructor(kind, { status, code, detail, retryAfter } = {}) {
    super(detail ?? kind);
    Object.assign(this, { kind, status, code, detail, retryAfter });
  }
}

// The events of the connection to the server: `failure` with a `Failure`, `slow` with the number of requests
// that wait for longer than a second, and `back` when the server answers again.
export const connection = new EventTarget();

const SLOW_MS = 1_000;
const TIMEOUT_MS = 60_000;

// The last answers and their entity tags, by path.
const answers = new Map();
const REMEMBERED = 32;

// GETs JSON. If the answer has not changed, it is the same object as before.
export async function get(path, { signal } = {}) {
  const known = answers.get(path);
  const response = await request(path, { signal, headers: known ? { "if-none-match": known.tag } : {} });
  if (response.status === 304) return known.data;
  if (!response.ok) throw await failureOf(response);
  const data = await within(response.json());
  remember(path, response.headers.get("etag"), data);
  return data;
}

// GETs all pages of a list of devices. The path has a query.
export async function getAll(path, signal) {
  const pages = [];
  for (let next = ""; next !== null; next = pages.at(-1).next) {
    pages.push(await get(path + (next && `&cursor=${encodeURIComponent(next)}`), { signal }));
  }
  return { pages, devices: pages.flatMap((page) => page.devices) };
}

// Sends a JSON merge patch, and returns the answer and its tag. If `tag` is given and no longer current, the request
// fails as `changed`.
export async function patch(path, changes, tag) {
  const headers = { "content-type": "application/merge-patch+json", ...(tag && { "if-match": tag }) };
  const response = await request(path, { method: "PATCH", headers, body: JSON.stringify(changes) });
  if (!response.ok) throw await failureOf(response);
  answers.clear();
  return { ...(await within(response.json())), tag: response.headers.get("etag") };
}

// GETs a text.
export async function getText(path, { signal } = {}) {
  const response = await request(path, { signal });
  if (!response.ok) throw await failureOf(response);
  return within(response.text());
}

// GETs JSON, also if the status is an error.
export async function getAnyStatus(path, { signal } = {}) {
  const response = await request(path, { signal });
  return { status: response.status, data: await within(response.json().catch(() => ({}))) };
}

// Whether the server lets this page read a path.
export async function mayRead(path) {
  return (await request(path, { method: "HEAD" })).ok;
}

// Saves a file of the API. The browser fetches it itself; with a token, the script does, as a link cannot send one. Only
// the head of the answer has to come within `TIMEOUT_MS`.
export async function save(path, name) {
  const link = document.createElement("a");
  link.download = name;
  link.href = path;
  if (token.get()) {
    const limit = new AbortController();
    const timer = setTimeout(() => limit.abort(new DOMException("", "TimeoutError")), TIMEOUT_MS);
    const response = await request(path, { limit: limit.signal }).finally(() => clearTimeout(timer));
    if (!response.ok) throw await failureOf(response);
    link.href = URL.createObjectURL(await within(response.blob()));
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }
  link.click();
}

// Sends a request. `signal` and `limit` end it, also while the body of the answer comes.
async function request(path, { signal, headers = {}, method, body, limit = AbortSignal.timeout(TIMEOUT_MS) }) {
  const secret = token.get();
  const authorization = secret ? { authorization: `Bearer ${secret}` } : {};
  const sent = Date.now();
  const patience = new Patience();
  try {
    const response = await fetch(path, {
      method,
      body,
      headers: { ...headers, ...authorization },
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      cache: "no-store",
    });
    observe(response.headers.get("date"), sent, Date.now());
    return response;
  } catch (error) {
    throw asFailure(error, signal);
  } finally {
    patience.end();
  }
}

// Counts a request as slow from `SLOW_MS` until its end.
class Patience {
  static #slow = 0;
  #isSlow = false;
  #timer = setTimeout(() => this.#change(true), SLOW_MS);

  end() {
    clearTimeout(this.#timer);
    if (this.#isSlow) this.#change(false);
  }

  #change(isSlow) {
    this.#isSlow = isSlow;
    Patience.#slow += isSlow ? 1 : -1;
    connection.dispatchEvent(new CustomEvent("slow", { detail: Patience.#slow }));
  }
}

// Waits for the body of an answer. If the connection breaks off, the error is a `Failure`.
async function within(body) {
  try {
    return await body;
  } catch (error) {
    throw asFailure(error);
  }
}

function asFailure(error, signal) {
  if (error instanceof Failure || signal?.aborted) return error;
  const failure = new Failure(error.name === "TimeoutError" ? "slow" : "gone");
  connection.dispatchEvent(new CustomEvent("failure", { detail: failure }));
  return failure;
}

const KINDS = { 400: "refused", 401: "unauthorized", 403: "forbidden", 404: "unknown", 412: "changed", 429: "busy" };
const KINDS_BY_CODE = { store_unavailable: "away", query_timeout: "slow", overloaded: "busy" };

async function failureOf(response) {
  const { code, detail } = await response.json().catch(() => ({}));
  const retryAfter = Number(response.headers.get("retry-after")) * 1_000 || undefined;
  const kind = KINDS_BY_CODE[code] ?? KINDS[response.status] ?? "failed";
  const failure = new Failure(kind, { status: response.status, code, detail, retryAfter });
  connection.dispatchEvent(new CustomEvent("failure", { detail: failure }));
  return failure;
}

function remember(path, tag, data) {
  answers.delete(path);
  if (!tag) return;
  answers.set(path, { tag, data });
  if (answers.size > REMEMBERED) answers.delete(answers.keys().next().value);
}

const MIN_WAIT_MS = 2_000, MAX_WAIT_MS = 60_000, RETRY_MS = [500, 1_000, 2_000, 4_000];

// Repeats `work` while the page is visible: after two seconds, or later if the server takes long for it.
export class Poll {
  #work; #failed; #timer; #running; #failures = 0; #stopped = false;
  #wake = () => { if (!document.hidden && this.#timer !== undefined) this.now(); };

  constructor(work, failed) {
    [this.#work, this.#failed] = [work, failed];
    document.addEventListener("visibilitychange", this.#wake);
    connection.addEventListener("back", this.#wake);
    this.now();
  }

  // Starts the work at once, and aborts the work in progress.
  now() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#running?.abort();
    this.#run(this.#running = new AbortController());
  }

  stop() {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#running?.abort();
    document.removeEventListener("visibilitychange", this.#wake);
    connection.removeEventListener("back", this.#wake);
  }

  async #run(controller) {
    const started = performance.now();
    let wait;
    try {
      await this.#work(controller.signal);
      this.#failures = 0;
      wait = Math.min(Math.max(MIN_WAIT_MS, 20 * (performance.now() - started)), MAX_WAIT_MS);
    } catch (error) {
      if (controller.signal.aborted) return;
      this.#failed(error);
      if (!(error instanceof Failure)) throw error;
      if (error.kind === "unauthorized") return;
      wait = Math.max(error.retryAfter ?? 0, RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)]);
    }
    if (this.#stopped || controller.signal.aborted) return;
    this.#timer = setTimeout(() => {
      if (!document.hidden) this.now(); // a hidden page continues when it is shown
    }, wait);
  }
}
