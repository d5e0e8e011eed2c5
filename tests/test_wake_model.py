"""The model of sleeping, unmapping, closing holds; it needs each fence, each look, each wake."""

from typing import Any

import pytest

from tests.models import wake_model
from tests.models.wake_model import exchange, search, wait_for

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("second", [True, False], ids=["fence", "none"])
@pytest.mark.parametrize("first", [True, False], ids=["fence", "none"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (wake_model.hand_on, wake_model.sleep_until_work),
        (wake_model.make_room, wake_model.sleep_until_room),
        (wake_model.look_up, wake_model.unmap),
        (wake_model.go_short_way, wake_model.close),
    ],
    ids=["work", "room", "unmapping", "closing"],
)
def test_both_sides_need_a_fence(one: Any, other: Any, first: bool, second: bool) -> None:
    def play() -> int:
        return search(lambda: [one(fenced=first), other(fenced=second)])

    if first and second:
        assert play() > 10
    else:
        with pytest.raises(wake_model.BrokenError):
            play()


def test_a_second_look_before_sleeping_and_a_wait_before_unmapping_and_closing() -> None:
    with pytest.raises(wake_model.BrokenError, match="sleeps for good"):
        search(lambda: [wake_model.hand_on(), wake_model.sleep_until_work(looks_again=False)])
    with pytest.raises(wake_model.BrokenError, match="after it was unmapped"):
        search(lambda: [wake_model.look_up(), wake_model.unmap(waits=False)])
    with pytest.raises(wake_model.BrokenError, match="let go"):
        search(lambda: [wake_model.go_short_way(), wake_model.close(waits=False)])


def test_the_read_cursor_and_who_waits_for_it() -> None:
    """Nobody sleeps for good, neither before the read cursor nor behind it."""
    threads = (wake_model.walk, wake_model.settle_and_pass, wake_model.link_roll)
    assert search(lambda: [each() for each in threads]) > 1_000


@pytest.mark.parametrize("rule", wake_model.Rules.__dataclass_fields__)
@pytest.mark.parametrize("wrong", range(3), ids=["dequeue-get", "dequeue-put", "enqueue"])
def test_its_waiting_needs_each_fence_look_and_wake(wrong: int, rule: str) -> None:
    threads = (wake_model.walk, wake_model.settle_and_pass, wake_model.link_roll)
    without = wake_model.Rules(**{rule: False})

    def programs() -> list[wake_model.Program]:
        return [each(without if i == wrong else wake_model.ALL) for i, each in enumerate(threads)]

    with pytest.raises(wake_model.BrokenError, match="sleeps for good"):
        search(programs)


def help_first(**rules: bool) -> wake_model.Program:
    """Hand on the first of two entries to a service whose thread sleeps, and help it."""
    yield exchange("tail", 1)
    yield exchange("sleeps", 1)
    yield from wake_model.step(**rules)


def help_second(**rules: bool) -> wake_model.Program:
    """Hand on the second one meanwhile."""
    yield wait_for("sleeps", 1)
    yield from wake_model.help_on(2, **rules)


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        ({}, ""),
        ({"looks_again": False}, "an entry waits"),
        ({"fenced": False}, "an entry waits"),
        ({"takes": False}, "two threads run one step"),
    ],
    ids=["all", "no second look", "given back without a fence", "looked at, then taken"],
)
def test_helpers_leave_nothing_behind(rules: dict[str, bool], what: str) -> None:
    def threads() -> list[wake_model.Program]:
        own = wake_model.own_thread(**rules)
        return [help_first(**rules), help_second(**rules), own]

    if rules:
        with pytest.raises(wake_model.BrokenError, match=what):
            search(threads, wake_model.all_handled(2))
    else:
        assert search(threads, wake_model.all_handled(2)) > 1_000
