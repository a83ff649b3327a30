"""Runs the broker amqtt: amqtt_broker.py PORT. It admits every client, and prints a line when it listens."""

import asyncio
import sys

from amqtt.broker import Broker

CONFIG = {
    "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{sys.argv[1]}"}},
    "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
}


async def main():
    await Broker(CONFIG).start()
    print("listening", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
