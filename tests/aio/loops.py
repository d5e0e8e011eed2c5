"""Event loops for tests: asyncio's own, with uvloop where it is installed."""

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

R = TypeVar("R")
LOOPS = ["asyncio"] + ["uvloop"] * (importlib.util.find_spec("uvloop") is not None)
LIMIT_S = 20


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    if kind == "uvloop":
        import uvloop

        loop = uvloop.new_event_loop()
        assert isinstance(loop, asyncio.AbstractEventLoop)
        return loop
    return asyncio.new_event_loop()


def run(kind: str, main: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """What a coroutine returns, in a loop of its own that takes no longer than a test may."""

    async def limited() -> R:
        async with asyncio.timeout(LIMIT_S):
            return await main()

    with asyncio.Runner(loop_factory=lambda: new_loop(kind)) as runner:
        return runner.run(limited())


async def until(holds: Callable[[], object]) -> None:
    """Wait for something to be; `run` limits how long."""
    while not holds():
        await asyncio.sleep(0.001)
