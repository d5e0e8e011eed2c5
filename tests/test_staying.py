"""What cannot leave its process says so, in our words."""

import asyncio
import copy
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
from tests.small_store import SMALL
from timerstore.recurring import Schedules

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


def test_stores_and_what_they_hand_out(tmp_path: Path) -> None:
    asyncio.run(try_all(tmp_path))


async def try_all(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store, timerstore.serve(store) as server:
        store.put_many([b"a", b"b", b"c"], topic="t")
        id = store.put(b"x", delay=timedelta(hours=1))
        things: list[Any] = [store, server, timerstore.Consumer(store, "g")]
        things.append(Schedules(store))
        with timerstore.connect(store.path) as client:
            for each in (store, client):
                batch = each.pull("t", max_count=1, timeout=10)
                things += [each, batch, *batch, timerstore.Consumer(each, "g")]
            async with timerstore.aio.attach(store) as attached:
                handed = await attached.pull("t", timeout=10)
                things += [attached, handed, *handed, timerstore.aio.Consumer(attached, "g")]
            for thing in things:
                for leave in (pickle.dumps, copy.copy, copy.deepcopy):
                    with pytest.raises(
                        timerstore.InvalidArgumentError, match="to this process"
                    ) as refused:
                        leave(thing)
                    assert isinstance(thing, timerstore.Batch) == ("A batch" in str(refused.value))
        told = store.get(id), store.put_many([b"x"]), store.stats(), store.health()
        assert [type(pickle.loads(pickle.dumps(each))) for each in told] == [*map(type, told)]
    with (
        timerstore.open(tmp_path / "s", share=True) as shared,
        pytest.raises(timerstore.InvalidArgumentError, match="A SharedStore belongs"),
    ):
        pickle.dumps(shared)
    with (
        timerstore.open(tmp_path / "s", read_only=True) as looked_at,
        pytest.raises(timerstore.InvalidArgumentError, match="A ReadOnlyStore belongs"),
    ):
        pickle.dumps(looked_at)
