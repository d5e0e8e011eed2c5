"""A small store, and the page that shows it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import timerstore
from tests.cli.shell import SMALL
from tests.page.browsing import Browser
from timerstore import TimerStore
from timerstore.page import PageServer

Shown = Callable[..., Browser]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "timers", config=SMALL) as store:
        yield store


@pytest.fixture
def show(store: TimerStore) -> Shown:
    """`show(write=True)`: a browser of the store's page, which ends with the store."""
    return lambda where="0", **how: Browser(PageServer(store, f"127.0.0.1:{where}", **how).url)
