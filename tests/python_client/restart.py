"""Readings wait in the client while a server is killed and starts again at another address.

The test that runs this program executes the steps that it prints, and answers with the address of the server."""

import sys
import unittest

from common import START, Case, Proxy


def step(name):
    print(name, flush=True)
    return sys.stdin.readline().strip()


class Restart(Case):
    def test_readings_wait_for_the_server(self):
        proxy = Proxy(self, sys.stdin.readline().strip())
        client = self.client(proxy.url, batch_readings=10)
        expected = {}
        for turn in range(3):
            for index in range(50):
                ts = START + 1000 * turn + index
                client.write("restart", ts, ts)
                expected[ts] = {"value": ts}
            if turn == 0:
                client.flush()
            elif turn == 1:
                step("kill")
        with client._changed:
            self.assertTrue(client._changed.wait_for(lambda: client._failure is not None, 300))
        proxy.target = step("start")
        client.flush()
        self.assertEqual(self.stored("restart", proxy.url), expected)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
