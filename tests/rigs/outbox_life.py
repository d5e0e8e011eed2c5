"""A relay's life, which is ended at any step of its store's disk."""

import timerstore
from tests.small_store import small
from timerstore.outbox import Relay

COUNT = 40


def config_of(durability: str) -> timerstore.Config:
    return small(log_bytes=1 << 15, durability=durability, retention_ms=3_600_000)


def work(path: str, durability: str, database: str) -> None:
    """Put what is in the table in a few steps."""
    from timerstore.outbox import relay as relay_module

    vars(relay_module)["_READ"] = relay_module._READ.replace("limit 1000", "limit 7")
    with timerstore.open(path, config=config_of(durability)) as store:
        relay = Relay(store, database)
        count = 0
        while count < COUNT // 2:
            count += relay.step()
        relay.close()
