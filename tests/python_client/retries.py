"""Retries: each reading is stored once, even if requests or answers are lost on their way."""

import itertools
import select
import socket
import unittest

from common import DAY, START, URL, Case, Proxy


class Retries(Case):
    def test_a_cut_connection_stores_readings_once(self):
        faults = ["cut before the server", "cut before the answer", "cut in the answer", "no answer"]
        cases = []
        for number, (fault, repeats) in enumerate(itertools.product(faults, (1, 3))):
            proxy = Proxy(self, URL)
            client = self.client(proxy.url, batch_readings=10, timeout=0.5)
            client.write("cut-before", 1, START)
            client.flush()  # the connection is used, so that the next request reuses it
            proxy.faults += [fault] * repeats
            client.write_many(f"cut-{number}", [(START + index, index) for index in range(40)])
            cases.append((f"cut-{number}", client, proxy, fault, repeats))
        for device, client, proxy, fault, repeats in cases:
            client.flush()
            self.assertEqual(proxy.seen.count(fault), repeats)
            self.assertEqual(self.stored(device), {START + index: {"value": index} for index in range(40)})
            self.assertEqual([it.count for it in self.client().rollups(device, **DAY)], [40])

    def test_queries_are_repeated(self):
        proxy = Proxy(self, URL)
        client = self.client(proxy.url)
        client.write("asked", 7, START)
        client.flush()
        for fault in ["cut before the server", "cut before the answer", "cut in the answer"]:
            proxy.faults.append(fault)
            self.assertEqual([row.value for row in client.latest("asked")], [7])
            self.assertEqual(proxy.seen[-1], "none")

    def test_a_limited_device_waits_for_retry_after(self):
        # limits.device_readings_per_second is 400, and its burst a second: the second request has to wait.
        proxy = Proxy(self, URL)
        client = self.client(proxy.url, batch_readings=900, batch_seconds=3600)
        client.write_many("limited", [(START + index, index) for index in range(1800)])
        client.flush()
        # On a slow machine, it may not have to.
        self.assertEqual((proxy.answers[0], proxy.answers[-1]), (200, 200))
        self.assertLessEqual(set(proxy.answers), {200, 429})
        self.assertEqual(len(self.stored("limited")), 1800)

    def test_a_server_without_free_connections(self):
        host, port = URL.removeprefix("http://").split(":")
        others = []
        refused = b""
        while not refused:  # http.max_connections is small
            others.append(socket.create_connection((host, int(port))))
            answered, _, _ = select.select(others, [], [], 0.05)
            refused = answered[0].recv(1000) if answered else b""
        self.assertIn(b" 503 ", refused)
        client = self.client(background=False)
        client.write("crowded", 1, START)
        self.assertEqual(self.fails("flush_timeout", client.flush, 0.2).status, 503)
        for other in others:
            other.close()
        client.flush()
        self.assertEqual(self.stored("crowded"), {START: {"value": 1}})

    def test_large_batches_are_split(self):
        # http.max_body_bytes is 64 KiB: the server refuses such a batch, and the client halves it.
        padding = "x" * 1000
        client = self.client(batch_bytes=1 << 20, batch_seconds=3600)
        for index in range(200):
            client.write("split", index, START + index, metadata={"padding": padding})
        client.flush()
        self.assertEqual(len(self.stored("split")), 200)
        client.write_many("huge", [(START, {"temp" * 20_000: 1}), (START + 1, 1)])
        error = self.fails("body_too_large", client.flush)
        self.assertEqual((error.status, error.lost), (413, 1))
        self.assertEqual(self.stored("huge"), {START + 1: {"value": 1}})


if __name__ == "__main__":
    unittest.main()
