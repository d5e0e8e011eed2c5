"""Rounds of puts that take turns; what is told of them."""

from pathlib import Path

import pytest
import sending

import timerstore
from tests.small_store import SMALL

SIZES = sending.Sizes(3, 5, 2)


def test_ways_take_turns_and_the_first_round_is_left_out() -> None:
    played: list[tuple[str, int]] = []

    def way(name: str) -> sending.Way:
        return sending.Way(
            lambda count: played.append((f"{name} put", count)),
            lambda count: played.append((f"{name} put_many", count)),
        )

    rates = sending.rates_of({"cluster": way("cluster"), "store": way("store")}, SIZES)
    each = [("cluster put", 3), ("cluster put_many", 5), ("store put", 3), ("store put_many", 5)]
    assert played == 3 * each
    assert {name: set(calls) for name, calls in rates.items()} == {
        name: {"put", "put_many"} for name in ("cluster", "store")
    }
    assert all(len(found) == 2 for calls in rates.values() for found in calls.values())


def test_a_row_tells_medians_and_how_many_times_the_cluster() -> None:
    rates = {
        "cluster": {"put": [90.0, 100.0, 700.0], "put_many": [500.0]},
        "store": {"put": [1_000.0, 200.0, 900.0], "put_many": [1_000.0]},
    }
    told = [(row.what, row.measured) for row in sending.rows_of(rates)]
    assert told == [
        ("`put`, cluster", "100 a second (90 to 700)"),
        ("`put_many`, cluster", "500 a second (500 to 500)"),
        ("`put`, store", "900 a second (200 to 1,000), 9.0 × the cluster's"),
        ("`put_many`, store", "1,000 a second (1,000 to 1,000), 2.0 × the cluster's"),
    ]


def test_a_store_gets_what_is_counted(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        way = sending.way_into(store, 4_000_000_000_000)
        way.put_one(3)
        way.put_many(5)
        assert store.count(topic=sending.TOPIC) == 8


@pytest.mark.slow
@pytest.mark.prove
def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.interop.brokers import NoRocketMQError, classpath

    try:
        classpath()
    except NoRocketMQError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("HOME", str(Path.home()))  # as it was, at the end
    rates = sending.measure(tmp_path, ["process"], SIZES)
    assert all(rate > 0 for calls in rates.values() for found in calls.values() for rate in found)
    assert len(rates) == 2
