"""Shared by the tests of the Python client: the client, the server of the test, and a proxy with faults."""

import contextlib
import functools
import os
import pathlib
import shutil
import socket
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "clients" / "python"))

import tidegauge  # noqa: E402
from tidegauge import TidegaugeError  # noqa: E402

#: The server, which `tests/python_client.rs` has started.
URL = os.environ.get("TIDEGAUGE_URL", "")
TOKEN = os.environ.get("TIDEGAUGE_TOKEN")
START = 1713621600000  # 2024-04-20T14:00:00Z
DAY = {"start": START - START % 86_400_000, "end": START - START % 86_400_000 + 86_400_000}


class Client(tidegauge.Client):
    """The client, with long timeouts for a busy machine."""

    def flush(self, timeout=300.0):
        super().flush(timeout)

    def close(self, timeout=300.0):
        super().close(timeout)


@functools.cache
def unused_url():
    """An address of this machine on which nothing listens: the socket keeps its port until this process ends."""
    unused = socket.socket()
    unused.bind(("127.0.0.1", 0))
    port = unused.getsockname()[1]
    unused.detach()
    return f"http://127.0.0.1:{port}"


class Case(unittest.TestCase):
    def client(self, url=URL, **options):
        client = Client(url, TOKEN, **options)
        self.addCleanup(quietly_close, client)
        return client

    def folder(self):
        folder = tempfile.mkdtemp(prefix="tidegauge-spool-")
        self.addCleanup(shutil.rmtree, folder)
        return folder

    def stored(self, device, url=URL):
        """All readings of a device in the server, by time. It fails if a time occurs twice."""
        client = self.client(url)
        readings = list(client.readings(device, **DAY))
        by_time = {round(reading.ts.timestamp() * 1000): reading.values for reading in readings}
        self.assertEqual(len(by_time), len(readings))
        return by_time

    def fails(self, code, call, *args, **options):
        with self.assertRaises(TidegaugeError) as caught:
            call(*args, **options)
        self.assertEqual(caught.exception.code, code, caught.exception)
        return caught.exception


def quietly_close(client):
    with contextlib.suppress(TidegaugeError):
        client.close(0.0)


class Listener:
    """A server whose connections `serve(socket)` handles, each in a thread of its own."""

    def __init__(self, case, serve):
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        case.addCleanup(thread.join)
        case.addCleanup(self._listener.close)
        case.addCleanup(self._listener.shutdown, socket.SHUT_RDWR)

    def _accept(self):
        threads = []
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threads.append(threading.Thread(target=self._handle, args=[connection], daemon=True))
                threads[-1].start()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()

    def _handle(self, connection):
        with connection, contextlib.suppress(OSError):
            self._serve(connection)


def read_message(connection):
    """One HTTP message with a Content-Length, or none; `b""` at the end of the connection."""
    message = b""
    while b"\r\n\r\n" not in message:
        piece = connection.recv(65536)
        if not piece:
            return b""
        message += piece
    head, _, body = message.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < int(lengths[0] if lengths else 0):
        piece = connection.recv(65536)
        if not piece:
            return b""
        body += piece
    return head + b"\r\n\r\n" + body


class Proxy(Listener):
    """Passes requests on to a server, whose URL may change. `faults` has the faults of the next requests."""

    def __init__(self, case, target):
        self.target, self.faults, self.seen, self.answers = target, [], [], []
        super().__init__(case, self._pass_on)

    def _pass_on(self, connection):
        while request := read_message(connection):
            fault = self.faults.pop(0) if self.faults else "none"
            self.seen.append(fault)
            if fault == "cut before the server":
                return
            host, port = self.target.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port))) as server:
                server.sendall(request)
                answer = read_message(server)
                self.answers.append(int(answer.split(b" ", 2)[1]))
            if fault == "cut before the answer":
                return
            if fault == "cut in the answer":
                connection.sendall(answer[:-5])
                return
            if fault == "no answer":
                read_message(connection)  # until the client gives up
                return
            connection.sendall(answer)
