"""A process that relays, and consumes what comes; killed at any moment.

`outbox_worker.py STORE DATABASE SEEN`: it notes each body before it acknowledges it.
"""

import os
import sys
import threading

import timerstore
from tests.small_store import small
from timerstore.outbox import Relay


def main(path: str, database: str, seen: str) -> None:
    config = small(retention_ms=0, durability="group")
    with (
        timerstore.open(path, config=config, share=True) as store,
        Relay(store, database) as relay,
        open(seen, "ab", buffering=0) as file,
    ):
        print("ready", flush=True)
        threading.Thread(target=end_with_input, daemon=True).start()
        for d in store.consume("t", timeout=3600):
            relay.check()
            file.write(b"%s %s\n" % (d.id.encode(), d.body))
            d.ack()


def end_with_input() -> None:
    """End when the test does, however."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
