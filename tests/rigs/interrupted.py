"""Holds that a query of a run that fails interrupts the others of this run, and nobody else's."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.rigs.waiting import wait_until
from timerstore.audit import OnSpark

_WAITS = 1_200
_PATIENCE_S = 120.0  # Spark's first task of Python


def check(spark: Any, folder: Path) -> None:
    """Let a query fail while one of the same run runs, and one of the caller's, on two cores."""
    told: dict[str, Any] = {}

    def asked(name: str) -> int:
        """Return how many rows a query returns, which waits for the file `end`."""
        begun, end = str(folder / name), str(folder / "end")

        def rows(batches: Iterator[Any]) -> Iterator[Any]:
            Path(begun).touch()
            for _ in range(_WAITS):
                if os.path.exists(end):
                    break
                time.sleep(0.1)
            yield from batches

        return len(spark.range(0, 1, 1, 1).mapInArrow(rows, "id bigint").collect())

    def act(name: str) -> None:
        told[f"tags of {name}"] = spark.getTags()
        if name == "wrong":
            wait_until((folder / "slow").exists, _PATIENCE_S)
            raise ValueError(name)
        try:
            told[name] = asked(name)
        except Exception as e:
            told[name] = e
            raise

    spark.addTag("mine")
    with ThreadPoolExecutor(1) as pool, OnSpark(spark, {}) as engine:
        mine = pool.submit(asked, "mine")
        wait_until((folder / "mine").exists, _PATIENCE_S)
        try:
            engine.each({"slow": "", "wrong": ""}, act)
        except ValueError as e:
            told["raised"] = str(e)
        (folder / "end").touch()
        assert mine.result() == 1
    assert told["raised"] == "wrong" and isinstance(told["slow"], Exception), told
    assert "mine" in told["tags of slow"] and "mine" in told["tags of wrong"]
    assert spark.getTags() == {"mine"}
    spark.removeTag("mine")
