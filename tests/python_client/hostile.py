"""Answers of a hostile or broken server. Each takes bounded time and memory, raises, and loses no reading."""

import resource
import time
import unittest

from common import START, Case, Listener, read_message

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def of_length(body, head=OK):
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


GARBAGE = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n" * 10,
    "binary": bytes(range(256)) * 100,
    "no JSON": of_length(b"<html>Sign in to the hotel</html>"),
    "a list": of_length(b"[]"),
    "empty": of_length(b""),
    "no UTF-8": of_length(b'{"accepted": "\xff"}'),
    "deep": of_length(b"[" * 100_000),
    "another count": of_length(b'{"accepted": 2}'),
    "a text as count": of_length(b'{"accepted": "1"}'),
    "an endless integer": of_length(b'{"accepted": ' + b"9" * 100_000 + b"}"),
    "a negative count": of_length(b'{"code": "partially_rejected", "accepted": 2, "rejected": -1, "errors": []}',
                                  b"HTTP/1.1 400 Bad\r\n"),
    "errors elsewhere": of_length(b'{"code": "partially_rejected", "accepted": 0, "rejected": 1, "errors": '
                                  b'[{"index": 7, "code": "x", "detail": "y"}]}', b"HTTP/1.1 400 Bad\r\n"),
    "the whole body refused": of_length(b'{"status": 400, "code": "invalid_body", "detail": "cut"}',
                                       b"HTTP/1.1 400 Bad\r\n"),
    "a proxy's limit": of_length(b"<html>", b"HTTP/1.1 413 Too large\r\n"),
    "a long status": b"HTTP/1.1 200 " + b"x" * 100_000,
    "many headers": OK + b"X: y\r\n" * 1000 + b"\r\n",
    "a long header": OK + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    "a negative length": OK + b"Content-Length: -5\r\n\r\n{}",
    "a bad chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    "cut": OK + b"Content-Length: 100\r\n\r\n{\"accepted\": 1}",
    "cut in a chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n10\r\n{\"accepted\": 1}",
    "moved": b"HTTP/1.1 301 Moved\r\nLocation: http://example.com/\r\nContent-Length: 0\r\n\r\n",
    "a bad Retry-After": b"HTTP/1.1 503 Busy\r\nRetry-After: \xb2\r\nContent-Length: 0\r\n\r\n",
    "a far Retry-After": b"HTTP/1.1 503 Busy\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n",
    "a Retry-After with a date": b"HTTP/1.1 503 Busy\r\nRetry-After: Fri, 31 Dec 9999 23:59:59 GMT\r\n"
                                 b"Content-Length: 0\r\n\r\n",
}


class Hostile(Case):
    def server(self, answer):
        """A server that sends `answer` to each request; a function sends pieces until it ends."""
        def serve(connection):
            while read_message(connection):
                for piece in answer() if callable(answer) else [answer]:
                    connection.sendall(piece)
                if not callable(answer) and b"Content-Length: 0" not in answer:
                    return
        return Listener(self, serve).url

    def test_garbage_loses_no_reading(self):
        for name, answer in GARBAGE.items():
            with self.subTest(name):
                client = self.client(self.server(answer), background=False)
                client.write("garbage", 1, START)
                size = client.queued_bytes
                with self.assertRaises(Exception) as caught:
                    client.flush(0.05)
                self.assertEqual(type(caught.exception).__name__, "TidegaugeError")
                self.assertEqual(client.queued_bytes, size)
                self.fails("not_sent", client.close, 0)

    def test_a_slow_answer_ends_at_the_deadline(self):
        def drip():
            for byte in OK + b"Content-Length: 1000000\r\n\r\n" + b" " * 1_000_000:
                yield bytes([byte])
                time.sleep(0.01)  # slower than any server, and never silent


        def continued():
            while True:
                yield b"HTTP/1.1 100 Continue\r\n\r\n"
                time.sleep(0.01)

        for answer in [drip, continued]:
            client = self.client(self.server(answer), timeout=0.3)
            started = time.monotonic()
            self.fails("timeout", client.devices)
            self.assertLess(time.monotonic() - started, 100)

    def test_a_huge_answer_takes_bounded_memory(self):
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        for head, piece in [(b"Transfer-Encoding: chunked\r\n\r\n", chunk),
                            (b"Content-Length: 99999999999\r\n\r\n", chunk), (b"\r\n", chunk)]:
            def pieces(head=OK + head, piece=piece):
                yield head
                while True:
                    yield piece
            client = self.client(self.server(pieces), answer_bytes=4 << 20, background=False)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            self.fails("answer_too_large", client.devices)
            client.write("huge", 1)
            self.fails("answer_too_large", client.flush)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            self.assertLess(grown, 32 << 10, "KiB")

    def test_odd_queries(self):
        deep = b'{"readings": [], "next": "%s"}' % (b"1" * 50)
        for answer in [
            b'{"readings": 5, "next": null}', b'{"readings": [{}], "next": null}', b'{"next": null}',
            b'{"readings": [{"ts": "never", "values": {}}], "next": null}',
            b'{"readings": [{"ts": "2024-04-20T14:00:00Z", "values": {"a": "b"}}], "next": null}',
            b'{"readings": [{"ts": 5, "values": {}}], "next": null}', b'{"readings": [], "next": 7}', deep,
        ]:
            client = self.client(self.server(lambda answer=answer: [of_length(answer)]))
            self.fails("invalid_answer", list, client.readings("d"))
        for call in ["rollups", "latest"]:
            for answer in [b'{"metrics": []}', b'{"metrics": {"a": 5}}', b'{"metrics": {"a": [5]}}', b"{}"]:
                client = self.client(self.server(lambda answer=answer: [of_length(answer)]))
                self.fails("invalid_answer", getattr(client, call), "d")

    def test_missing_readings_are_remarked(self):
        page = of_length(b'{"readings": [], "next": null, "partial": true, "laggingSeconds": 3}')
        client = self.client(self.server(lambda: [page]))
        readings = client.readings("d")
        with self.assertLogs("tidegauge", "WARNING"):
            self.assertEqual(list(readings), [])
        self.assertEqual((readings.partial, readings.lagging_seconds), (True, 3.0))


if __name__ == "__main__":
    unittest.main()
