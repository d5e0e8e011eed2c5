"""The parts of RocketMQ's client that we use: if one has changed, an error says what to do."""

from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, Signature
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from tests.markdown import ROOT
from timerstore import InvalidArgumentError
from timerstore.rocketmq.library import PARTS, TESTED, load


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the client's log goes."""
    monkeypatch.setenv("HOME", str(tmp_path))


def taking(*needs: str, **may: object) -> Callable[..., None]:
    """A function that takes such arguments."""

    def call() -> None:
        pass

    kind = Parameter.POSITIONAL_OR_KEYWORD
    takes = [Parameter(name, kind) for name in needs]
    takes += [Parameter(name, kind, default=value) for name, value in may.items()]
    call.__signature__ = Signature(takes)  # type: ignore[attr-defined]
    return call


def owner_of(name: str) -> tuple[Any, str]:
    """What has a part as its attribute, and the attribute's name."""
    module, _, path = name.partition(":")
    kind, _, attribute = path.removesuffix(".fget").removesuffix(".fset").rpartition(".")
    found = import_module(module)
    return (attrgetter(kind)(found) if kind else found), attribute


def test_the_client_is_as_it_was() -> None:
    assert load().Producer
    assert f"rocketmq-python-client=={TESTED}\n" in (ROOT / "requirements.lock").read_text()


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_gone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    monkeypatch.delattr(*owner_of(name))
    with pytest.raises(InvalidArgumentError) as caught:
        load()
    assert f" {name} is not there" in str(caught.value)
    assert f"pip install rocketmq-python-client=={TESTED}" in str(caught.value)


@pytest.mark.parametrize("name", [each for each, given in PARTS.items() if given is not None])
def test_a_call_that_takes_something_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    given = PARTS[name] or ()
    for made, is_as_used in (
        (taking("self", *given), True),
        (taking("self", *given, more=None), True),
        (taking("self", *given, "more"), False),
        (taking("self"), not given),
    ):
        monkeypatch.setattr(*owner_of(name), made)
        if is_as_used:
            load()
        else:
            with pytest.raises(InvalidArgumentError, match="other arguments"):
                load()
