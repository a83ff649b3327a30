"""A client of tidegauge: it writes readings and queries them. One file, standard library only, Python 3.9 or newer.

    with Client("http://127.0.0.1:8080", spool="pump.spool") as client:
        client.write("pump-1", {"temp": 22.4, "hum": 40})
        client.flush()
        for reading in client.readings("pump-1"):
            print(reading.ts, reading.values["temp"])

`write` appends a reading to a queue. A background thread sends the queue in batches, and repeats a batch until the
server has answered for each of its readings. With a spool, which is a folder, the queue is on disk: `write` returns
when its reading is on disk, and the next client with this folder sends the rest. The client gives each reading its
time before it queues it. Device, time and series identify a reading, so the server stores a resent reading once.

    write ──> queue: memory or spool ──> batch ──> POST /v1/readings ──> done: remove it from the queue
                                           └── repeat after Retry-After, or with exponential backoff

Two values of one series within one millisecond have the same identity, and the later one stays: give such readings
times of your own.

All methods are safe for use by several threads. A client does not survive `fork`: make one in each process.
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import http.client
import importlib
import io
import itertools
import json
import logging
import math
import os
import random
import re
import socket
import ssl
import sys
import threading
import time
import urllib.parse
import weakref
import zlib
from collections import deque
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from email.message import Message
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import (
    Any, BinaryIO, Callable, Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, SupportsFloat, Tuple,
    Type, TypeVar, Union, cast,
)

__version__ = "0.1.0"
__all__ = [
    "Client", "Device", "Latest", "Meta", "MetaValue", "Param", "Reading", "Readings", "Rejection", "Rollup", "Rows",
    "Sample", "TidegaugeError", "Time", "Values",
]

#: An instant: whole Unix milliseconds, text as the API takes it (RFC 3339), or a `datetime` with a time zone.
Time = Union[int, str, datetime]
#: Values by series, or one number: the value of the metric `value`. `None` is no value.
Values = Union[SupportsFloat, Mapping[str, Optional[SupportsFloat]]]
#: A value of metadata: a number, or a text as the API takes it. `"Zone*"` is the start of texts.
MetaValue = Union[str, int, float]
#: Conditions on the metadata of devices, by key: a value, or several of which one has to match.
#: `{"floor!": 2}` are the devices without this value. `{"at.city": "Graz"}` names a member of an object.
Meta = Mapping[str, Union[MetaValue, Sequence[MetaValue]]]
#: A further query parameter, passed on as it is. A sequence repeats the parameter.
Param = Union[str, int, Sequence[str], None]

_LOG = logging.getLogger("tidegauge")
_BARE_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: The most milliseconds that the times of `write` are ahead of the clock.
_MAX_AHEAD_MS = 10_000
#: The size of one reading as JSON. The limits of the server keep valid readings below it.
_MAX_LINE_BYTES = 256 * 1024
#: The size of an answer to a write. It lists at most 100 rejected readings.
_MAX_WRITE_ANSWER_BYTES = 1 << 20
_MAX_REJECTIONS = 100
_MAX_IDLE_CONNECTIONS = 4
_MAX_QUERY_ATTEMPTS = 4
_MAX_EMPTY_PAGES = 1000
_MAX_BACKOFF_SECONDS = 60.0
_MAX_RETRY_AFTER_SECONDS = 300.0
#: Statuses after which the same request may succeed later.
_TEMPORARY = frozenset([408, 425, 429, 500, 502, 503, 504])
#: Problems of a body that is too large, all with status 413. The client halves the batch.
_TOO_LARGE = frozenset(["body_too_large", "too_many_readings", "request_too_large"])


@dataclass(frozen=True)
class Rejection:
    """A reading, or a value of it, that the server rejected."""

    code: str
    detail: str
    #: The reading as JSON, as the client sent it.
    reading: str


class TidegaugeError(Exception):
    """A refused request, rejected or dropped readings, or a server without a valid answer.

    `status`      the HTTP status, `None` without an answer
    `code`        the code of the problem document, or one of the client: `unreachable` (no connection, or it broke),
                  `timeout`, `invalid_answer`, `answer_too_large`, `flush_timeout`, `queue_full`, `dropped`
                  (`drop_oldest` made room), `not_sent` (lost when the client closed), `spool_failed`,
                  `spool_damaged`, `closed`, `forked`
    `detail`      the reason
    `problem`     the whole problem document
    `temporary`   whether the same request may succeed later
    `retry_after` the seconds after which the server asks for the request again
    `lost`        the number of queued readings that were rejected, dropped or lost
    `rejections`  the rejected readings, of many the first 100
    """

    def __init__(
        self, status: Optional[int], code: str, detail: str, *, problem: Optional[Mapping[str, Any]] = None,
        temporary: bool = False, retry_after: Optional[float] = None, lost: int = 0,
        rejections: Sequence[Rejection] = (),
    ) -> None:
        text = f"{code}: {detail}" if status is None else f"{status} {code}: {detail}"
        first = f"; the first: {rejections[0].code}: {rejections[0].detail}" if rejections else ""
        super().__init__(text + first)
        self.status, self.code, self.detail = status, code, detail
        self.problem: Dict[str, Any] = dict(problem or {})
        self.temporary, self.retry_after = temporary, retry_after
        self.lost, self.rejections = lost, tuple(rejections)


@dataclass(frozen=True)
class Reading:
    """The values of a device at one instant, by series."""

    device: str
    ts: datetime
    values: Dict[str, float]


@dataclass(frozen=True)
class Sample:
    """A value and its instant."""

    ts: datetime
    value: float


@dataclass(frozen=True)
class Rollup:
    """The statistics of one series in one step. A column that the answer does not have is `None`."""

    #: `None` if the query combined several devices.
    device: Optional[str]
    series: str
    #: The begin of the step.
    ts: datetime
    count: Optional[int] = None
    min: Optional[float] = None
    max: Optional[float] = None
    avg: Optional[float] = None
    sum: Optional[float] = None
    first: Optional[Sample] = None
    last: Optional[Sample] = None
    increase: Optional[float] = None
    #: The values of the metadata that the combined devices have in common, if the query combined `by:` them.
    group: Optional[Mapping[str, Any]] = None
    #: The earlier step beside this one, if the query asks to `compare`.
    compared: Optional[Rollup] = None


@dataclass(frozen=True)
class Latest:
    """The latest value of one series."""

    device: str
    series: str
    ts: datetime
    value: float
    #: `"min"` or `"max"`: the limit in the metadata of the device that the value is beyond.
    beyond: Optional[str] = None


@dataclass(frozen=True)
class Device:
    """A device of the device list."""

    device: str
    metadata: Optional[Dict[str, Any]]
    metrics: List[str]
    first_seen: Optional[datetime]
    last_seen: Optional[datetime]


Row = TypeVar("Row", Rollup, Latest, Device)


class Rows(List[Row]):
    """The rows of an answer: a list."""

    #: Whether stored readings are missing, because the store was away or slow.
    partial: bool = False
    #: Readings acknowledged within this time may be missing.
    lagging_seconds: Optional[float] = None

    def to_frame(self) -> Any:
        """The rows as a pandas `DataFrame`. The index is `ts` in UTC; devices are indexed by their ID. `first` and
        `last` are values, beside columns `first_ts` and `last_ts`. Groups `by:floor` have a column `by_floor`, earlier
        steps columns such as `compared_avg`."""
        pandas = importlib.import_module("pandas")
        columns: Dict[str, List[Any]] = {}
        for row in self:
            for name, value in vars(row).items():
                columns.setdefault(name, []).append(value)
        earlier: List[Optional[Rollup]] = columns.pop("compared", [])
        if any(earlier):
            for name in ("ts", *_STATS):
                columns[f"compared_{name}"] = [getattr(row, name, None) for row in earlier]
        for name in [name for name in columns if name.endswith(("first", "last"))]:
            samples: List[Optional[Sample]] = columns[name]
            columns[name] = [sample and sample.value for sample in samples]
            columns[f"{name}_ts"] = [sample and sample.ts for sample in samples]
        groups: List[Mapping[str, Any]] = [group or {} for group in columns.pop("group", [])]
        for key in dict.fromkeys(key for group in groups for key in group):
            columns[f"by_{key}"] = [group.get(key) for group in groups]
        # Without rows the kind of the rows is not known, so the frame has no columns either.
        frame = pandas.DataFrame(columns or {"ts": []})
        instants = [name for name in frame.columns if name == "ts" or name.endswith(("_ts", "_seen"))]
        for name in [name for name in instants if not name.startswith("by_")]:
            frame[name] = pandas.to_datetime(frame[name], utc=True)
        if "ts" not in frame.columns:
            return frame.set_index("device")
        unused = [name for name in _COLUMNS if name in frame.columns and frame[name].isna().all()]
        return frame.drop(columns=unused).set_index("ts")


_STATS = ("count", "min", "max", "avg", "sum", "first", "last", "increase")
_OF_STEP = (*_STATS, "first_ts", "last_ts")
_COLUMNS = ("device", *_OF_STEP, *(f"compared_{name}" for name in _OF_STEP))


class Readings(Iterator[Reading]):
    """The readings of devices, device by device, each in time order. It holds one page of an answer at a time."""

    def __init__(self, device: Optional[str], pages: Iterator[Tuple[Optional[str], Any]]) -> None:
        #: `None` if the query asked for several devices.
        self.device = device
        #: Whether stored readings are missing from the pages so far, because the store was away or slow.
        self.partial = False
        #: Readings acknowledged within this time may be missing.
        self.lagging_seconds: Optional[float] = None
        self._readings = (reading for of_device, page in pages for reading in self._of(of_device, page))

    def __next__(self) -> Reading:
        return next(self._readings)

    def _of(self, device: Optional[str], page: Any) -> List[Reading]:
        with _checked("readings"):
            _remark(self, page)
            return [] if device is None else [
                Reading(device, _instant(item["ts"]), {str(key): float(it) for key, it in item["values"].items()})
                for item in page["readings"]
            ]

    def to_frame(self) -> Any:
        """The remaining readings as a pandas `DataFrame`: one column a series, and the index `ts` in UTC. Of several
        devices, the first column is `device`."""
        pandas = importlib.import_module("pandas")
        times: List[datetime] = []
        devices: List[str] = []
        columns: Dict[str, List[float]] = {}
        for reading in self:
            for series, value in reading.values.items():
                column = columns.setdefault(series, [])
                column.extend(itertools.repeat(math.nan, len(times) - len(column)))
                column.append(value)
            times.append(reading.ts)
            devices.append(reading.device)
        for column in columns.values():
            column.extend(itertools.repeat(math.nan, len(times) - len(column)))
        index = pandas.DatetimeIndex(pandas.to_datetime(times, utc=True), name="ts")
        frame = pandas.DataFrame({series: columns[series] for series in sorted(columns)}, index=index)
        if self.device is None:
            frame.insert(0, "device", devices, allow_duplicates=True)
        return frame


class Client:
    """A connection to a tidegauge server: a queue of readings to write, and queries.

    `url`             of the server: `http://` or `https://`, with a path if a proxy needs one
    `token`           the token, if the server requires one
    `timeout`         the seconds for one request, whatever the server sends meanwhile
    `ssl_context`     for `https://`: trusted authorities, a client certificate
    `compress`        whether bodies are compressed with gzip
    `background`      whether a thread sends the queue. Without it, only `flush` and `close` send
    `batch_readings`, `batch_bytes`, `batch_seconds`  the thread sends when this much is queued, or the oldest reading
                      has waited this long. No request has more readings or bytes (before compression)
    `queue_bytes`     the size of the queue, in memory or on disk
    `when_full`       `write` with a full queue: `"raise"` raises `queue_full`, `"block"` waits, `"drop_oldest"`
                      drops the oldest readings and reports `dropped`
    `spool`           the folder of the queue. One client may use it at a time. Without it the queue is in memory
    `spool_sync`      whether `write` syncs the disk before it returns. Without it, readings survive the death of the
                      process, but the last ones may not survive a power cut
    `answer_bytes`    the size of an answer to a query
    `on_error`        is called for rejected, dropped and damaged readings (`lost`, `rejections`), and when the server
                      refuses to take readings at all, for example with `401`; the client keeps these and tries again.
                      Any thread may call it, and it must not call `flush` or `close`. Without it, the logger
                      `tidegauge` has these errors, and the next `flush` or `close` raises them
    """

    def __init__(
        self, url: str, token: Optional[str] = None, *, timeout: float = 30.0,
        ssl_context: Optional[ssl.SSLContext] = None, compress: bool = True, background: bool = True,
        batch_readings: int = 5000, batch_bytes: int = 1 << 20, batch_seconds: float = 1.0,
        queue_bytes: int = 64 << 20, when_full: str = "raise", spool: Union[str, "os.PathLike[str]", None] = None,
        spool_sync: bool = True, answer_bytes: int = 64 << 20,
        on_error: Optional[Callable[[TidegaugeError], None]] = None,
    ) -> None:
        if when_full not in ("raise", "block", "drop_oldest"):
            raise ValueError('when_full is "raise", "block" or "drop_oldest"')
        if when_full == "block" and not background:
            raise ValueError('when_full="block" needs the background thread')
        if batch_readings < 1 or batch_bytes < 1:
            raise ValueError("a batch has at least one reading and one byte")
        least = 4 * max(batch_bytes, _MAX_LINE_BYTES)
        if queue_bytes < least:
            raise ValueError(f"queue_bytes is at least 4 * batch_bytes and 1 MiB: {least}")
        self._http = _Http(url, token, timeout, ssl_context)
        self._compress, self._background, self._answer_bytes = compress, background, answer_bytes
        self._batch_readings, self._batch_bytes, self._batch_seconds = batch_readings, batch_bytes, batch_seconds
        self._queue_bytes, self._when_full, self._on_error = queue_bytes, when_full, on_error
        self._queue: Union[_Memory, _Spool] = (
            _Memory() if spool is None else _Spool(os.fspath(spool), max(queue_bytes // 16, 65536), spool_sync)
        )
        # The condition guards the queue and what follows. Each change that a thread may await notifies it.
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self._due_at: Optional[float] = None
        self._fresh_readings = self._fresh_bytes = 0
        self._hurry = self._closed = self._is_forked = False
        self._give_up_at = math.inf
        self._attempts = self._failed_attempt = 0
        # The last time that `write` gave to each device, unless all are past, and the newest of them.
        self._given: Dict[str, int] = {}
        self._newest_given = 0
        self._last_now = 0  # the clock at the last call of `write`
        self._failure: Optional[TidegaugeError] = None
        self._unreported: Optional[TidegaugeError] = None
        # The thread that holds this lock sends; `_parts` is its batch, the next part last.
        self._sending = threading.Lock()
        self._parts: List[List[bytes]] = []
        _CLIENTS.add(self)
        this: weakref.ref[Client] = weakref.ref(self)
        self._at_exit = lambda: _close_at_exit(this)
        atexit.register(self._at_exit)
        if self._queue.start < self._queue.end:
            with self._changed:
                self._due_at = time.monotonic()
                self._start_thread()

    def __repr__(self) -> str:
        return f"Client({self._http.url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType],
    ) -> None:
        try:
            self.close()
        except TidegaugeError:
            if kind is None:
                raise
            _LOG.exception("the client was closed because of another exception")

    # Writing

    def write(
        self, device: str, values: Values, ts: Optional[Time] = None, *, labels: Optional[Mapping[str, str]] = None,
        metadata: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Queues a reading. With a spool it is on disk when this returns.

        `ts` is the current time by default, and a millisecond later than that of the reading of this device before, if
        both would be equal: a device has one value of a series in each millisecond. After a burst whose times are 10 s
        ahead of the clock, `write` waits for the clock.
        `labels` apply to all values of the reading, `metadata` describes the device. A value that no server would
        take raises `ValueError` or `TypeError`, and a full queue `TidegaugeError`. If the spool fails, the reading
        may be stored nevertheless.
        """
        self._append([_line(device, values, self._time_for(device) if ts is None else ts, labels, metadata)])

    def _time_for(self, device: str) -> int:
        """The current time in Unix milliseconds, later than the one that was given to this device before."""
        with self._changed:
            while True:
                now = _now()
                was_set_back = now < self._last_now - _MAX_AHEAD_MS
                if was_set_back or self._newest_given < now:
                    self._given.clear()
                    self._newest_given = now
                self._last_now = now
                given = max(now, self._given.get(device, 0) + 1)
                if given <= now + _MAX_AHEAD_MS:
                    break
                self._changed.wait(0.001)
            self._given[device] = given
            self._newest_given = max(self._newest_given, given)
        return given

    def write_many(
        self, device: str, readings: Iterable[Tuple[Time, Values]], *, labels: Optional[Mapping[str, str]] = None,
        metadata: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Queues many readings of a device, each with its time, faster than `write` does with a spool.

        If it raises, the readings before the faulty one may be queued.
        """
        lines: List[bytes] = []
        size = 0
        for ts, values in readings:
            line = _line(device, values, ts, labels, None if lines else metadata)
            size += len(line)
            lines.append(line)
            if size >= _MAX_LINE_BYTES:
                self._append(lines)
                lines, size = [], 0
        if lines:
            self._append(lines)

    def flush(self, timeout: float = 30.0) -> None:
        """Waits until the server has answered for all readings written before this call.

        Raises `TidegaugeError` if the server refuses them, if they are not sent within `timeout` seconds (they stay
        queued in both cases), and for readings that were lost since the last call, unless `on_error` got these.
        """
        deadline = time.monotonic() + timeout
        if self._background:
            self._await(deadline, timeout)
        else:
            with self._changed:
                self._check_usable()
                goal = self._queue.end
            error = self._deliver(goal, deadline)
            if error is not None:
                raise self._unsent(error, timeout)
        self._raise_unreported()

    def close(self, timeout: float = 10.0) -> None:
        """Sends the queue within `timeout` seconds, and ends the thread and the connections.

        With a spool, unsent readings stay there. Without one they are lost, and it raises `not_sent`. It also raises
        errors that no `flush` has raised.
        """
        with self._changed:
            if self._closed:
                return
            self._closed, self._hurry, self._give_up_at = True, True, time.monotonic() + timeout
            self._changed.notify_all()
            thread, goal = self._thread, self._queue.end
        atexit.unregister(self._at_exit)
        if thread is not None:
            thread.join(timeout)
        else:
            self._deliver(goal, self._give_up_at)
        self._http.close()
        if thread is not None:
            thread.join(5.0)  # its connection is shut, so it ends at once
        with self._changed:
            lost = self._queue.close()
        if lost:
            reason = f": {self._failure}" if self._failure else ""
            self._report(TidegaugeError(None, "not_sent", f"{lost} queued readings were not sent{reason}", lost=lost))
        self._raise_unreported()

    @property
    def queued_bytes(self) -> int:
        """The size of the queue, in memory or on disk, against `queue_bytes`."""
        with self._changed:
            return self._queue.size

    def _append(self, lines: List[bytes]) -> None:
        size = sum(map(len, lines))
        with self._changed:
            self._check_usable()
            dropped = self._make_room(size + _RECORD_OVERHEAD * len(lines))
            try:
                end = self._queue.append(lines)
            except OSError as error:
                raise _spool_failed(error) from error
            finally:
                wake = self._due_at is None
                if wake:
                    self._due_at = time.monotonic() + self._batch_seconds
                self._fresh_readings += len(lines)
                self._fresh_bytes += size
                if self._fresh_readings >= self._batch_readings or self._fresh_bytes >= self._batch_bytes:
                    self._due_at, wake = 0.0, True
                if wake:
                    self._start_thread()
                    self._changed.notify_all()
        if dropped:
            detail = f"the queue is full ({self._queue_bytes} bytes), so its {dropped} oldest readings were dropped"
            self._report(TidegaugeError(None, "dropped", detail, lost=dropped))
        try:
            self._queue.sync(end)
        except OSError as error:
            raise _spool_failed(error) from error

    def _make_room(self, size: int) -> int:
        """Applies `when_full`, and returns the number of dropped readings."""
        dropped = 0
        while self._queue.size + size > self._queue_bytes:
            if self._when_full == "raise":
                reason = f"; the last attempt to send failed: {self._failure}" if self._failure else ""
                detail = f"{self._queue.size} bytes are unsent and queue_bytes is {self._queue_bytes}{reason}"
                raise TidegaugeError(None, "queue_full", detail, temporary=True)
            if self._when_full == "drop_oldest":
                try:
                    dropped += self._queue.drop(self._queue.size + size - self._queue_bytes)
                except OSError as error:
                    raise _spool_failed(error) from error
                self._changed.notify_all()
            else:
                self._due_at = 0.0
                self._start_thread()
                self._changed.notify_all()
                self._changed.wait(1.0)
                self._check_usable()
        return dropped

    def _check_usable(self) -> None:
        if self._is_forked:
            raise TidegaugeError(None, "forked", "this client belongs to the parent process; make one in this process")
        if self._closed:
            raise TidegaugeError(None, "closed", "the client is closed")

    # Sending

    def _start_thread(self) -> None:
        if self._background and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tidegauge", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """The thread: waits until a batch is due, and sends what is queued by then."""
        while True:
            with self._changed:
                while not self._closed and (self._due_at is None or self._due_at > time.monotonic()):
                    self._changed.wait(None if self._due_at is None else max(self._due_at - time.monotonic(), 0.0))
                goal, is_last = self._queue.end, self._closed
                self._due_at, self._fresh_readings, self._fresh_bytes = None, 0, 0
            try:
                self._deliver(goal, None)
            except Exception:  # a fault of the client must not end the thread while others wait for it
                _LOG.exception("sending failed")
                time.sleep(1.0)
                with self._changed:
                    self._due_at = 0.0
            if is_last:
                return

    def _deliver(self, goal: int, deadline: Optional[float]) -> Optional[TidegaugeError]:
        """Sends the queue up to `goal`. It repeats until it succeeds; with a deadline, and while the client closes,
        it returns the error that makes success in time unlikely."""
        failures = 0
        with self._sending:
            while True:
                with self._changed:
                    if self._queue.start >= goal:
                        return None
                    if time.monotonic() > self._give_up_at:
                        return self._failure
                    self._attempts += 1
                    attempt, self._hurry = self._attempts, False
                error = self._send_batch()
                if error and error.code == "closed":
                    return error
                with self._changed:
                    before = self._failure
                    self._failure, self._failed_attempt = error, attempt if error else self._failed_attempt
                    self._changed.notify_all()
                if error is None:
                    failures = 0
                    continue
                failures += 1
                attended = deadline is not None or self._closed
                if before is None or before.code != error.code:
                    _LOG.warning("readings wait in the queue: %s", error)
                    if not error.temporary and self._on_error:
                        self._report(error)
                pause = _pause(error, failures)
                limit = min(self._give_up_at, math.inf if deadline is None else deadline)
                is_spooled = self._closed and isinstance(self._queue, _Spool)
                if (attended and not error.temporary) or is_spooled or time.monotonic() + pause > limit:
                    return error
                self._sleep(pause, may_hurry=error.retry_after is None)

    def _sleep(self, seconds: float, may_hurry: bool) -> None:
        """Waits until the next attempt. `flush` and `close` end a wait that the server did not ask for."""
        until = time.monotonic() + seconds
        with self._changed:
            while (left := until - time.monotonic()) > 0 and until < self._give_up_at:
                if may_hurry and self._hurry:
                    return
                self._changed.wait(left)

    def _send_batch(self) -> Optional[TidegaugeError]:
        """Sends the next batch, or what is left of it. Returns the error after which it has to be sent again."""
        if not self._parts:
            try:
                with self._changed:
                    lines, damaged = self._queue.take(self._batch_readings, self._batch_bytes)
            except OSError as error:
                return _spool_failed(error)
            if damaged:
                detail = f"the spool had {damaged} damaged records, which were skipped"
                self._report(TidegaugeError(None, "spool_damaged", detail, lost=damaged))
            self._parts = [lines] if lines else []
        while self._parts:
            lines = self._parts[-1]
            try:
                self._post(lines)
            except TidegaugeError as error:
                if error.status != 413:
                    return error
                if len(lines) > 1:
                    self._parts[-1:] = [lines[len(lines) // 2:], lines[:len(lines) // 2]]
                elif error.code in _TOO_LARGE:
                    self._parts.pop()
                    self._report_rejected(error, [Rejection(error.code, error.detail, lines[0].decode())], 1)
                else:
                    return error  # a proxy may have refused it
            else:
                self._parts.pop()
        with self._changed:
            self._queue.done()
            self._changed.notify_all()
        return None

    def _post(self, lines: List[bytes]) -> None:
        """Sends one request; returns when the server has answered for each reading."""
        body = b"\n".join(lines)
        headers = {"Content-Type": "application/x-ndjson"}
        if self._compress and len(body) > 500:
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        deadline = min(time.monotonic() + self._http.timeout, self._give_up_at)
        rejection: Optional[TidegaugeError] = None
        try:
            answer = self._http.ask("POST", "/v1/readings", body, headers, deadline, _MAX_WRITE_ANSWER_BYTES)
        except TidegaugeError as error:
            if error.status != 400 or error.code not in ("partially_rejected", "rejected"):
                raise
            rejection, answer = error, error.problem
        listed: List[Rejection] = []
        with _checked("/v1/readings"):
            lost = int(answer["rejected"]) if rejection else 0
            if lost < 0 or answer["accepted"] + lost != len(lines):
                raise ValueError(f"it accounts for other than {len(lines)} readings")
            for item in answer["errors"][:_MAX_REJECTIONS] if rejection else []:
                index = range(len(lines))[item["index"]]
                listed.append(Rejection(str(item["code"]), str(item["detail"]), lines[index].decode()))
        if rejection:
            self._report_rejected(rejection, listed, lost)

    def _report_rejected(self, error: TidegaugeError, rejections: List[Rejection], lost: int) -> None:
        self._report(TidegaugeError(
            error.status, error.code, error.detail, problem=error.problem, lost=lost, rejections=rejections))

    def _report(self, error: TidegaugeError) -> None:
        """Passes an error to the user: to `on_error` now, or to the next `flush`."""
        if self._on_error:
            try:
                self._on_error(error)
            except Exception:
                _LOG.exception("on_error failed")
            return
        _LOG.error("%s", error)
        with self._changed:
            before = self._unreported
            if before:
                before.lost += error.lost
                before.rejections = (before.rejections + error.rejections)[:_MAX_REJECTIONS]
            else:
                self._unreported = error

    def _raise_unreported(self) -> None:
        with self._changed:
            error, self._unreported = self._unreported, None
        if error:
            raise error

    def _await(self, deadline: float, timeout: float) -> None:
        """Waits for the thread."""
        with self._changed:
            self._check_usable()
            goal, begun = self._queue.end, self._attempts
            if self._queue.start >= goal:
                return
            self._due_at, self._hurry = 0.0, True
            self._start_thread()
            self._changed.notify_all()
            while self._queue.start < goal:
                error = self._failure
                if error and not error.temporary and self._failed_attempt > begun:
                    raise self._unsent(error, timeout)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._unsent(error, timeout)
                if self._closed:
                    raise TidegaugeError(None, "closed", "the client was closed")
                self._changed.wait(left)

    def _unsent(self, error: Optional[TidegaugeError], timeout: float) -> TidegaugeError:
        if error and not error.temporary:
            return TidegaugeError(error.status, error.code, error.detail, problem=error.problem)
        detail = f"{self._queue.end - self._queue.start} bytes of readings are unsent after {timeout:g} s"
        return TidegaugeError(
            error.status if error else None, "flush_timeout", f"{detail}: {error}" if error else detail,
            problem=error.problem if error else None, temporary=True)

    # Queries

    # `device`, `prefix` and `meta` select devices: a device or several, those whose ID begins with `prefix`,
    # those whose metadata meets all conditions of `meta`. Without any of them, a query is for all devices.

    def readings(
        self, device: Union[str, Sequence[str], None] = None, start: Optional[Time] = None,
        end: Optional[Time] = None, *, prefix: Optional[str] = None, meta: Optional[Meta] = None,
        metric: Union[str, Sequence[str], None] = None, labels: Optional[Mapping[str, str]] = None,
        page_size: Optional[int] = None, **params: Param,
    ) -> Readings:
        """The readings of devices from `start` (inclusive) to `end` (exclusive), by default those of the last day.

        `device`, `prefix` and `meta` select devices, `metric` and `labels` series. `page_size` is the number of
        readings in one answer.
        """
        pairs = _pairs(params, start, end, metric, labels)
        selection = _selection(device, prefix, meta)
        one = device if isinstance(device, str) and prefix is None and not meta else None
        return Readings(one, self._pages_of_devices(device, selection, pairs, page_size))

    def rollups(
        self, device: Union[str, Sequence[str], None] = None, start: Optional[Time] = None,
        end: Optional[Time] = None, *, step: Optional[str] = None, prefix: Optional[str] = None,
        meta: Optional[Meta] = None, metric: Union[str, Sequence[str], None] = None,
        labels: Optional[Mapping[str, str]] = None, fn: Union[str, Sequence[str], None] = None,
        combine: Union[bool, str] = False, tz: Optional[str] = None,
        offset: Union[str, timedelta, None] = None, compare: Optional[str] = None, **params: Param,
    ) -> Rows[Rollup]:
        """The rollups of the devices that `device`, `prefix` and `meta` select.

        Steps follow the clock of `tz`, and begin later by `offset`: `step="8h", offset="6h", tz="Europe/Berlin"` are
        shifts from 6, 14 and 22 o'clock in Berlin. `compare="-7d"` puts the step of the same local time seven days
        earlier beside each step, as `compared`.

        `fn` selects the columns, such as `["min", "last"]`. `combine=True` folds the series of all devices into
        one of each, `combine="by:floor"` those of each `group` of devices with the same `floor` in their metadata.
        One device that is unknown raises a 404.
        """
        columns = fn if fn is None or isinstance(fn, str) else ",".join(fn)
        pairs = _pairs(params, start, end, metric, labels) + _pairs({"step": step, "fn": columns})
        pairs += _pairs({"tz": tz, "offset": _period(offset), "compare": compare})
        rows: Rows[Rollup] = Rows()
        selection = _selection(device, prefix, meta)
        if device is not None and not device:
            return rows  # no devices; without the parameter, the query would be for all
        if isinstance(device, str) and prefix is None and not meta and not combine:
            path = f"/v1/devices/{_quoted(device)}/rollups"
            answer = self._get(path, pairs)
            with _checked(path):
                _remark(rows, answer)
                rows.extend(_rollups(device, answer))
            return rows
        pairs += selection + _pairs({"combine": combine or None})
        if combine:
            answer = self._get("/v1/rollups", pairs)
            with _checked("/v1/rollups"):
                _remark(rows, answer)
                for group in answer.get("groups", [answer]):
                    rows.extend(_rollups(None, group))
            return rows
        for page in self._pages("/v1/rollups", pairs, None, "devices"):
            with _checked("/v1/rollups"):
                _remark(rows, page)
                for item in page["devices"]:
                    rows.extend(_rollups(str(item["deviceId"]), item))
        return rows

    def latest(
        self, device: Union[str, Sequence[str], None] = None, *, prefix: Optional[str] = None,
        meta: Optional[Meta] = None, metric: Union[str, Sequence[str], None] = None,
        labels: Optional[Mapping[str, str]] = None, **params: Param,
    ) -> Rows[Latest]:
        """The latest value of each series of the devices that `device`, `prefix` and `meta` select."""
        pairs = _pairs(params, None, None, metric, labels)
        rows: Rows[Latest] = Rows()
        selection = _selection(device, prefix, meta)
        if device is not None and not device:
            return rows
        if isinstance(device, str) and prefix is None and not meta:
            path = f"/v1/devices/{_quoted(device)}/latest"
            answer = self._get(path, pairs)
            with _checked(path):
                _remark(rows, answer)
                rows.extend(_latest(answer))
            return rows
        for page in self._pages("/v1/latest", pairs + selection, None, "devices"):
            with _checked("/v1/latest"):
                _remark(rows, page)
                for item in page["devices"]:
                    rows.extend(_latest(item))
        return rows

    def devices(
        self, device: Union[str, Sequence[str], None] = None, *, prefix: Optional[str] = None,
        meta: Optional[Meta] = None, silent_for: Union[str, timedelta, None] = None, **params: Param,
    ) -> Rows[Device]:
        """The devices that `device`, `prefix` and `meta` select, in the order of their IDs.

        `silent_for` selects those whose last reading is longer ago: `"15m"`, `"1h30m"` or a `timedelta`.
        `beyond="limits"` selects those with a latest value beyond the limits in their metadata.
        """
        rows: Rows[Device] = Rows()
        pairs = _pairs(params) + _selection(device, prefix, meta) + _pairs({"silent_for": _period(silent_for)})
        if device is not None and not device:
            return rows
        for page in self._pages("/v1/devices", pairs, None, "devices"):
            with _checked("/v1/devices"):
                _remark(rows, page)
                rows.extend(map(_device, page["devices"]))
        return rows

    def _pages_of_devices(
        self, device: Union[str, Sequence[str], None], selection: List[Tuple[str, str]],
        pairs: List[Tuple[str, str]], page_size: Optional[int],
    ) -> Iterator[Tuple[Optional[str], Any]]:
        """The pages of the readings of each device. Pages of the list of devices are among them, without a device."""
        def of(device_id: str) -> Iterator[Tuple[Optional[str], Any]]:
            path = f"/v1/devices/{_quoted(device_id)}/readings"
            return ((device_id, page) for page in self._pages(path, pairs, page_size, "readings"))

        if device is not None and (not device or all(name == "device" for name, _ in selection)):
            for name in dict.fromkeys([device] if isinstance(device, str) else device):
                yield from of(name)
            return
        for listed in self._pages("/v1/devices", selection, None, "devices"):
            yield None, listed
            with _checked("/v1/devices"):
                names = [str(item["deviceId"]) for item in listed["devices"]]
            for name in names:
                yield from of(name)

    def _pages(
        self, path: str, pairs: List[Tuple[str, str]], limit: Optional[int], items: str,
    ) -> Iterator[Any]:
        """The pages of an answer, each following the cursor of the one before."""
        pairs = pairs + _pairs({"limit": limit})
        cursor: Optional[str] = None
        empty = 0
        while True:
            page = self._get(path, pairs + _pairs({"cursor": cursor}))
            with _checked(path):
                following = page.get("next")
                empty = 0 if page[items] else empty + 1
                if following is not None and (following in ("", cursor) or not isinstance(following, str)):
                    raise ValueError("the cursor does not advance")
                if empty > _MAX_EMPTY_PAGES:
                    raise ValueError("too many empty pages")
            yield page
            if following is None:
                return
            cursor = following

    def _get(self, path: str, pairs: List[Tuple[str, str]]) -> Any:
        """Asks until there is an answer, within `timeout` and a few attempts."""
        target = f"{path}?{urllib.parse.urlencode(pairs)}" if pairs else path
        deadline = time.monotonic() + self._http.timeout
        for attempt in itertools.count(1):
            self._check_usable()
            try:
                return self._http.ask("GET", target, None, {}, deadline, self._answer_bytes)
            except TidegaugeError as error:
                pause = _pause(error, attempt)
                is_last = attempt == _MAX_QUERY_ATTEMPTS or time.monotonic() + pause > deadline
                if is_last or not error.temporary:
                    raise
            time.sleep(pause)


def _close_at_exit(this: weakref.ref[Client]) -> None:
    client = this()
    if client is not None:
        try:
            client.close(5.0)
        except TidegaugeError as error:
            _LOG.error("at exit: %s", error)


_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Runs in a child process after `fork`: its clients are copies, and the parent goes on using the folders and
    connections. A copy sends nothing and removes nothing."""
    for client in list(_CLIENTS):
        client._is_forked = client._closed = True
        client._changed = threading.Condition()  # a thread that the child does not have may hold the old one
        if isinstance(client._queue, _Spool):
            client._queue.close_files()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


# Readings as JSON

_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _line(
    device: str, values: Values, ts: Time, labels: Optional[Mapping[str, str]],
    metadata: Optional[Mapping[str, Any]],
) -> bytes:
    """A reading as a line of NDJSON, without its end."""
    if not isinstance(device, str) or not device:
        raise ValueError(f"a device ID is a text that is not empty, not {device!r}")
    reading: Dict[str, Any] = {"deviceId": device, "ts": _millis_or_text(ts)}
    if isinstance(values, Mapping):
        numbers = {_text(series): _number(value) for series, value in values.items() if value is not None}
    else:
        numbers = {"value": _number(values)}
    if not numbers:
        raise ValueError("a reading has at least one value that is not None")
    reading["values"] = numbers
    if labels:
        reading["labels"] = {_text(key): _text(value) for key, value in labels.items()}
    if metadata is not None:
        reading["metadata"] = dict(metadata)
    line = _ENCODE(reading).encode("ascii")
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"a reading of {len(line)} bytes as JSON; at most {_MAX_LINE_BYTES} fit")
    return line


def _now() -> int:
    return time.time_ns() // 1_000_000


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"names, keys and labels are texts, not {value!r}")
    return value


def _number(value: object) -> Union[int, float]:
    if isinstance(value, (str, bytes, bytearray)) or not hasattr(value, "__float__"):
        raise TypeError(f"a value is a number, not {value!r}")
    try:
        number = float(cast(SupportsFloat, value))
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"a value is a finite 64-bit float, not {number}")
    return number


def _millis_or_text(ts: Time) -> Union[int, str]:
    """A time as the API takes it."""
    if isinstance(ts, datetime):
        if ts.tzinfo is None:
            raise ValueError(f"{ts!r} has no time zone")
        return int((ts - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(ts, date) or (isinstance(ts, str) and _BARE_DATE.fullmatch(ts)):
        raise ValueError(f"{ts} is a date without a time and a time zone; its begin in UTC is \"{ts}T00:00:00Z\"")
    if isinstance(ts, str):
        return ts
    if isinstance(ts, bool) or not hasattr(ts, "__index__"):
        raise TypeError(f"a time is whole Unix milliseconds, a text or a datetime, not {ts!r}")
    millis = ts.__index__()
    if 1_200_000_000 <= millis <= 2_500_000_000:
        raise ValueError(f"{millis} looks like Unix seconds; a time is in milliseconds")
    return millis


# Queries and their answers


def _quoted(device: str) -> str:
    return urllib.parse.quote(device, safe="")


def _pairs(
    params: Mapping[str, Param], start: Optional[Time] = None, end: Optional[Time] = None,
    metric: Union[str, Sequence[str], None] = None, labels: Optional[Mapping[str, str]] = None,
) -> List[Tuple[str, str]]:
    """The parameters of a query, without those that are `None`."""
    named = {"from": start, "to": end}
    pairs = [(name, str(_millis_or_text(it))) for name, it in named.items() if it is not None]
    pairs += [(f"label.{key}", value) for key, value in (labels or {}).items()]
    for name, value in itertools.chain({"metric": metric}.items(), params.items()):
        if isinstance(value, bool):
            pairs.append((name, "true" if value else "false"))
        elif isinstance(value, (str, int)):
            pairs.append((name, str(value)))
        elif value is not None:
            pairs += [(name, _text(item)) for item in value]
    return pairs


def _selection(
    device: Union[str, Sequence[str], None], prefix: Optional[str], meta: Optional[Meta],
) -> List[Tuple[str, str]]:
    """The parameters that select devices."""
    pairs = _pairs({"device": device, "prefix": prefix})
    for key, value in (meta or {}).items():
        values = list(value) if isinstance(value, (list, tuple, set, frozenset, range)) else [value]
        if not values:
            raise ValueError(f'the metadata {key!r} has no value to match; "*" matches any')
        pairs += [(f"meta.{_text(key)}", _meta_value(it)) for it in values]
    return pairs


def _meta_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a number of metadata is finite, not {value}")
    if not isinstance(value, (str, int, float)):
        raise TypeError(f"a value of metadata is a text or a number, not {value!r}")
    return str(value)


def _period(period: Union[str, timedelta, None]) -> Optional[str]:
    """A length of time as the API takes it."""
    if not isinstance(period, timedelta):
        if period is not None and not isinstance(period, str):
            raise TypeError(f'a length of time is a text such as "15m" or a timedelta, not {period!r}')
        return period
    if period < timedelta(0):
        raise ValueError(f"a length of time is not negative: {period}")
    return f"{period // timedelta(milliseconds=1)}ms"


@contextlib.contextmanager
def _checked(source: str) -> Iterator[None]:
    """Turns errors about the shape of an answer into `invalid_answer`."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise TidegaugeError(200, "invalid_answer", f"{source}: {error!r:.200}", temporary=True) from error


def _remark(target: Union[Rows[Any], Readings], answer: Any) -> None:
    """Notes what the answer says about missing readings."""
    if answer.get("partial") is True and not target.partial:
        target.partial = True
        _LOG.warning("the answer is partial: stored readings are missing")
    lagging = answer.get("laggingSeconds")
    if lagging is not None:
        target.lagging_seconds = max(float(lagging), target.lagging_seconds or 0.0)


def _instant(text: Any) -> datetime:
    if text.endswith("Z"):
        text = text[:-1] + "+00:00"  # Python 3.10 and older do not know Z
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f"a time without a zone: {text:.40}")
    return instant


def _float(value: Any) -> Optional[float]:
    return None if value is None else float(value)


def _sample(value: Any) -> Optional[Sample]:
    return None if value is None else Sample(_instant(value["ts"]), float(value["value"]))


def _rollups(device: Optional[str], answer: Any) -> Iterator[Rollup]:
    for series, points in answer["metrics"].items():
        for point in points:
            yield _rollup(device, series, point, answer.get("by"))


def _rollup(device: Optional[str], series: str, point: Any, group: Any) -> Rollup:
    count, compared = point.get("count"), point.get("compared")
    return Rollup(
        device, series, _instant(point["ts"]), None if count is None else int(count), _float(point.get("min")),
        _float(point.get("max")), _float(point.get("avg")), _float(point.get("sum")), _sample(point.get("first")),
        _sample(point.get("last")), _float(point.get("increase")), group,
        None if compared is None else _rollup(device, series, compared, group))


def _latest(answer: Any) -> Iterator[Latest]:
    for series, point in answer["metrics"].items():
        yield Latest(str(answer["deviceId"]), series, _instant(point["ts"]), float(point["value"]),
                     point.get("beyond"))


def _device(answer: Any) -> Device:
    seen = [None if answer.get(key) is None else _instant(answer[key]) for key in ("firstSeen", "lastSeen")]
    metadata = answer.get("metadata")
    metrics = [str(name) for name in answer["metrics"]]
    return Device(str(answer["deviceId"]), None if metadata is None else dict(metadata), metrics, *seen)


# HTTP


def _pause(error: TidegaugeError, failures: int) -> float:
    """The seconds until the next attempt: those that the server asks for, or exponential backoff with jitter."""
    if error.retry_after is not None:
        return min(error.retry_after, _MAX_RETRY_AFTER_SECONDS) * random.uniform(1.0, 1.1)
    return min(0.25 * 2.0 ** min(failures, 20), _MAX_BACKOFF_SECONDS) * random.uniform(0.5, 1.0)


class _Http:
    """Requests over connections that are used again. Each has a deadline, and a limit for its answer."""

    def __init__(
        self, url: str, token: Optional[str], timeout: float, context: Optional[ssl.SSLContext],
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("a URL is http://HOST:PORT or https://HOST:PORT, with or without a path")
        if "@" in parts.netloc:
            raise ValueError("a URL has no user name and no password; use token")
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise ValueError("a token has no spaces, is without the word Bearer, and has ASCII characters only")
        self.url, self.timeout = url, timeout
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        is_tls = parts.scheme == "https"
        self._context = (context or ssl.create_default_context()) if is_tls else None
        self._headers = {"User-Agent": f"tidegauge-python/{__version__}", "Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._lock = threading.Lock()
        self._idle: List[http.client.HTTPConnection] = []
        self._busy: List[http.client.HTTPConnection] = []
        self._closed = False

    def ask(
        self, method: str, target: str, body: Optional[bytes], headers: Mapping[str, str], deadline: float,
        max_bytes: int,
    ) -> Any:
        """Sends a request. Returns the JSON of an answer with status 200, and raises for any other answer."""
        while True:
            with self._lock:
                if self._closed:
                    raise TidegaugeError(None, "closed", "the client is closed")
                reused = self._idle.pop() if self._idle else None
                connection = reused or self._connection(deadline)
                self._busy.append(connection)
            keep = False
            try:
                if reused is None:
                    connection.connect()
                    connection.sock = cast(Any, _DeadlineSocket(connection.sock))
                cast(_DeadlineSocket, connection.sock).deadline = deadline
                connection.request(method, self._path + target, body, {**self._headers, **headers})
                response = connection.getresponse()
                content = _content(response, max_bytes)
                keep = not response.will_close
            except (OSError, http.client.HTTPException, ValueError) as error:
                # The server may have closed an idle connection. A request repeated by mistake is harmless.
                is_stale = isinstance(error, (ConnectionError, http.client.BadStatusLine))
                if reused is not None and is_stale and not self._closed:
                    continue
                is_late = isinstance(error, (socket.timeout, TimeoutError))
                reason = str(error) or type(error).__name__
                raise TidegaugeError(
                    None, "timeout" if is_late else "unreachable", f"{self.url}: {reason:.300}", temporary=True,
                ) from error
            finally:
                with self._lock:
                    self._busy.remove(connection)
                    keep = keep and not self._closed and len(self._idle) < _MAX_IDLE_CONNECTIONS
                    if keep:
                        self._idle.append(connection)
                if not keep:
                    connection.close()
            return _answer(response.status, response.headers, content)

    def _connection(self, deadline: float) -> http.client.HTTPConnection:
        left = max(deadline - time.monotonic(), 0.001)
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=left)
        return http.client.HTTPSConnection(self._host, self._port, timeout=left, context=self._context)

    def close(self) -> None:
        """Ends all connections, also those that wait for an answer."""
        with self._lock:
            self._closed = True
            for connection in self._busy:
                with contextlib.suppress(OSError, AttributeError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
            for connection in self._idle:
                connection.close()
            self._idle = []


class _DeadlineSocket:
    """A socket for `http.client` whose every operation ends at the deadline, however slowly bytes arrive."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner, self.deadline = inner, 0.0

    def arm(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout("the server did not answer in time")
        self._inner.settimeout(left)

    def sendall(self, data: bytes) -> None:
        self.arm()
        self._inner.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self, self._inner.makefile("rb", buffering=0)))

    def shutdown(self, how: int) -> None:
        self._inner.shutdown(how)

    def close(self) -> None:
        self._inner.close()


class _DeadlineReader(io.RawIOBase):
    def __init__(self, owner: _DeadlineSocket, inner: socket.SocketIO) -> None:
        super().__init__()
        self._owner, self._inner = owner, inner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        self._owner.arm()
        return self._inner.readinto(buffer)

    def close(self) -> None:
        self._inner.close()
        super().close()


def _content(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    """The whole body. Raises if it is cut or larger than `max_bytes`."""
    pieces: List[bytes] = []
    size = 0
    while True:
        piece = response.read(65536)
        size += len(piece)
        if size > max_bytes:
            detail = f"the answer has more than {max_bytes} bytes; ask for less, or set answer_bytes"
            raise TidegaugeError(response.status, "answer_too_large", detail)
        if not piece:
            break
        pieces.append(piece)
    expected = response.headers.get("Content-Length")
    if expected is not None and not response.headers.get("Transfer-Encoding") and size != int(expected):
        raise http.client.IncompleteRead(b"", int(expected) - size)
    return b"".join(pieces)


def _answer(status: int, headers: Message, content: bytes) -> Any:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        answer = None
    is_object = isinstance(answer, dict)
    if status == 200:
        if not is_object:
            raise TidegaugeError(status, "invalid_answer", "the answer is no JSON object", temporary=True)
        return answer
    problem = answer if is_object and isinstance(answer.get("code"), str) else {}
    code, detail = problem.get("code", f"http_{status}"), problem.get("detail", "the answer is no problem document")
    raise TidegaugeError(
        status, code, str(detail)[:2000], problem=problem, temporary=status in _TEMPORARY,
        retry_after=_retry_after(headers.get("Retry-After")))


def _retry_after(text: Optional[str]) -> Optional[float]:
    """The seconds of a header `Retry-After`: a number or a date."""
    if not text:
        return None
    try:
        if text.strip().isdecimal():
            return float(text[:12])
        return max((parsedate_to_datetime(text) - datetime.now(timezone.utc)).total_seconds(), 0.0)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


# The queue
#
# A position is a count of bytes since the queue was made. Readings from `start` to `end` are in the queue;
# those from `start` to `taken` are the batch of the sender. `done` moves `start` to `taken`.


class _Memory:
    """A queue in memory."""

    def __init__(self) -> None:
        self._lines: Deque[bytes] = deque()
        self._batch = 0
        self.start = self.taken = self.end = self.size = 0

    def append(self, lines: List[bytes]) -> int:
        self._lines.extend(lines)
        size = sum(map(len, lines))
        self.end += size
        self.size += size
        return self.end

    def sync(self, end: int) -> None:
        """Memory has nothing to sync."""

    def take(self, readings: int, size: int) -> Tuple[List[bytes], int]:
        lines: List[bytes] = []
        taken = 0
        while self._lines and len(lines) < readings and (not lines or taken + len(self._lines[0]) < size):
            lines.append(self._lines.popleft())
            taken += len(lines[-1]) + 1
        self._batch = len(lines)
        self.taken += sum(map(len, lines))
        return lines, 0

    def done(self) -> None:
        self.start, self._batch = self.taken, 0
        self.size = self.end - self.start

    def drop(self, size: int) -> int:
        """Drops the oldest readings, at least `size` bytes of them if the batch leaves as many."""
        dropped = freed = 0
        while self._lines and freed < size:
            freed += len(self._lines.popleft())
            dropped += 1
        self.taken += freed
        self.size -= freed
        if not self._batch:
            self.start = self.taken
        return dropped

    def close(self) -> int:
        """Returns the number of readings that are lost."""
        return self._batch + len(self._lines)


#: The bytes of a record beside its reading: eight hexadecimal digits, a space and a line feed.
_RECORD_OVERHEAD = 10


class _Spool:
    """A queue in a folder, which holds:

        lock        is locked while a client uses the folder
        position    `start` and its CRC; a stale one makes the next client resend readings, which is harmless
        N.spool     a segment: the records from position N on (20 digits). A record is the CRC-32 of a reading in
                    eight hexadecimal digits, a space, the reading as JSON, and a line feed

    Each client appends to segments of its own, so a torn record is always the end of a segment. A segment is removed
    when all of it is sent.
    """

    def __init__(self, folder: str, segment_bytes: int, is_synced: bool) -> None:
        self._folder, self._segment_bytes, self._is_synced = folder, segment_bytes, is_synced
        self._sync_lock = threading.Lock()
        self._failed: Optional[OSError] = None
        self._file: Optional[io.FileIO] = None
        self._is_open = True
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._lock = _locked(os.path.join(folder, "lock"))
            _sync_folder(os.path.dirname(os.path.abspath(folder)))
            self._segments = self._found()
            self._position = open(os.path.join(folder, "position"), "r+b" if self._has("position") else "w+b", 0)
            position = self._read_position()
        except OSError as error:
            raise _spool_failed(error) from error
        end = sum(self._segments[-1]) if self._segments else 0
        self.end = self._synced = max(end, position)
        first = self._segments[0][0] if self._segments else self.end
        self.start = self.taken = max(position, first)
        # The batch: its place, its readings, and how many of these `drop` has removed from the folder.
        self._batch_at = self._batch = self._orphans = 0
        self._remove_sent()

    @property
    def size(self) -> int:
        return sum(length for _, length in self._segments)

    def append(self, lines: List[bytes]) -> int:
        if self._failed:
            raise self._failed
        if self._file is None or self._segments[-1][1] >= self._segment_bytes:
            self._retire()
            if self._segments and self._segments[-1][1] == 0:
                self._segments.pop()  # an append to it failed, or a process ended before
            self._file = open(self._path(self.end), "wb", 0)
            self._segments.append((self.end, 0))
            if self._is_synced:
                _sync_folder(self._folder)
        data = memoryview(b"".join(b"%08x %s\n" % (zlib.crc32(line), line) for line in lines))
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        finally:
            base, length = self._segments[-1]
            self._segments[-1] = (base, length + written)
            self.end += written
            if written < len(data):
                self._retire()  # the torn record is the end of this segment
        return self.end

    def sync(self, end: int) -> None:
        """Returns when everything up to `end` is on disk. Threads that wait at the same time share a sync."""
        if not self._is_synced:
            return
        with self._sync_lock:
            if self._synced < end:
                self._sync_file()

    def _sync_file(self) -> None:
        """Syncs the segment; the caller holds the lock. After a failure the pages are undefined, so it is final."""
        if self._failed:
            raise self._failed
        target = self.end
        if self._file is not None:
            try:
                _sync(self._file.fileno())
            except OSError as error:
                self._failed = error
                raise
        self._synced = target

    def _retire(self) -> None:
        """Ends the segment."""
        with self._sync_lock:
            if self._file is not None:
                if self._is_synced:
                    self._sync_file()
                self._file.close()
                self._file = None

    def take(self, readings: int, size: int) -> Tuple[List[bytes], int]:
        lines: List[bytes] = []
        at = damaged = 0
        while not lines and self.taken < self.end:
            base, length = next((it for it in self._segments if sum(it) > self.taken), (self.end, 0))
            at = max(self.taken, base)
            if at == self.end:
                self.taken = at
                break
            with open(self._path(base), "rb") as file:
                file.seek(at - base)
                data = file.read(min(max(size, _MAX_LINE_BYTES) + _RECORD_OVERHEAD, base + length - at))
            is_rest = at + len(data) >= base + length or not data
            used = 0
            while len(lines) < readings and (stop := data.find(b"\n", used)) >= 0 and (not lines or stop < size):
                line = data[used + 9:stop]
                if data[used:used + 9] == b"%08x " % zlib.crc32(line):
                    lines.append(line)
                else:
                    damaged += 1
                used = stop + 1
            if not lines and is_rest and data.find(b"\n", used) < 0:
                used = base + length - at  # the segment ends with a torn record: no `write` has returned for it
            elif not lines and used == 0:
                damaged, used = damaged + 1, len(data)
            self.taken = at + used
        self._batch_at, self._batch, self._orphans = at, len(lines), 0
        return lines, damaged

    def done(self) -> None:
        self.start, self._batch, self._orphans = self.taken, 0, 0
        if self._is_open:
            text = b"%020d" % self.start
            with contextlib.suppress(OSError):  # a stale position is harmless
                self._position.seek(0)
                self._position.write(b"%s %08x\n" % (text, zlib.crc32(text)))
            self._remove_sent()

    def drop(self, size: int) -> int:
        """Drops the oldest segments, at least `size` bytes of them. A batch is sent nevertheless."""
        dropped = freed = 0
        while self._segments and freed < size:
            if len(self._segments) == 1:
                self._retire()
            base, length = self._segments[0]
            with open(self._path(base), "rb") as file:
                file.seek(min(max(self.taken - base, 0), length))
                dropped += file.read().count(b"\n")
            self._remove_first()
            freed += length
            if base <= self._batch_at < base + length:
                self._orphans = self._batch
            self.taken = max(self.taken, base + length)
        if not self._batch:
            self.start = max(self.start, self.taken)
        return dropped

    def close(self) -> int:
        """Leaves unsent readings for the next client. Returns the number of those that are not in the folder."""
        if self._is_open:
            with contextlib.suppress(OSError):
                self._retire()
            self._remove_sent()
            self.close_files()
        return self._orphans

    def close_files(self) -> None:
        """Leaves the folder as it is, for another process. The lock lasts until all processes have closed it."""
        self._is_open = False
        for file in (self._file, self._position, self._lock):
            if file is not None:
                file.close()

    def _remove_sent(self) -> None:
        """Removes segments that are sent, except the one that grows."""
        while self._segments and sum(self._segments[0]) <= self.start:
            if len(self._segments) == 1 and self._file is not None:
                return
            with contextlib.suppress(OSError):
                self._remove_first()

    def _remove_first(self) -> None:
        base, _ = self._segments.pop(0)
        os.remove(self._path(base))

    def _found(self) -> List[Tuple[int, int]]:
        """The segments in the folder: first position and length."""
        names = [name for name in os.listdir(self._folder) if name.endswith(".spool") and name[:-6].isdecimal()]
        sizes = [(int(name[:-6]), os.path.getsize(os.path.join(self._folder, name))) for name in names]
        return sorted(sizes)

    def _read_position(self) -> int:
        text, _, crc = self._position.read(64).strip().partition(b" ")
        return int(text) if len(text) == 20 and text.isdigit() and crc == b"%08x" % zlib.crc32(text) else 0

    def _has(self, name: str) -> bool:
        return os.path.exists(os.path.join(self._folder, name))

    def _path(self, base: int) -> str:
        return os.path.join(self._folder, f"{base:020}.spool")


def _spool_failed(error: OSError) -> TidegaugeError:
    if isinstance(error, BlockingIOError):
        return TidegaugeError(None, "spool_failed", "another client uses the folder")
    return TidegaugeError(None, "spool_failed", str(error), temporary=True)


def _locked(path: str) -> BinaryIO:
    """Opens a file and locks it until it is closed. Raises `BlockingIOError` if another process has locked it."""
    file = open(path, "ab")
    try:
        if sys.platform == "win32":
            import msvcrt

            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            except OSError as error:
                raise BlockingIOError from error
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def _sync(file: int) -> None:
    """Syncs the contents of a file."""
    if sys.platform == "linux":
        os.fdatasync(file)
    else:
        os.fsync(file)


def _sync_folder(path: str) -> None:
    """Syncs the names in a folder."""
    if sys.platform != "win32":
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
