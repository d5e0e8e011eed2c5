"""A process with a store in an event loop that puts, handles, fails, cancels, until it is killed.

    aio_worker.py FOLDER JOURNAL FIRST LOOP DURABILITY

Numbers from FIRST on are put; each line of the journal is one that was put, or one whose handler
has come to its end.
"""

import asyncio
import logging
import os
import random
import sys
from typing import Any

import timerstore
import timerstore.aio


async def main(folder: str, journal: int, first: int, durability: Any) -> None:
    config = timerstore.Config(
        durability=durability,
        flush_interval_ms=50,
        delay_levels="1s 1s 1s",
        tuning=timerstore.Tuning(commitlog_segment_bytes=1 << 20),
    )
    async with timerstore.aio.open(folder, config=config) as store:
        consumer = timerstore.aio.Consumer(store, "g", concurrency=50)

        @consumer.on("t")
        async def handle(d: timerstore.aio.Delivery) -> None:
            await asyncio.sleep(random.random() / 100)
            luck = random.random()
            if luck < 0.1:
                raise ValueError("no luck")
            if luck < 0.12:
                asyncio.current_task().cancel()  # type: ignore[union-attr]
                await asyncio.sleep(0)
            os.write(journal, b"done %s\n" % d.body)

        async with consumer:
            for start in range(first, first + 1_000_000, 20):
                numbers = range(start, start + 20)
                await asyncio.gather(*(store.put(b"%d" % n, topic="t") for n in numbers))
                os.write(journal, b"".join(b"put %d\n" % n for n in numbers))
                await asyncio.sleep(0.005)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    folder, path, first, kind, durability = sys.argv[1:]
    journal = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    if kind == "uvloop":
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    else:
        runner = asyncio.Runner()
    with runner:
        runner.run(main(folder, journal, int(first), durability))
