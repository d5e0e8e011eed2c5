"""RocketMQ's client, of which we use more than its authors promise: one version of it."""

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.markdown import ROOT
from timerstore import InvalidArgumentError
from timerstore.rocketmq import library
from timerstore.rocketmq.library import TESTED, load


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the client's log goes."""
    monkeypatch.setenv("HOME", str(tmp_path))


def test_the_client_is_as_it_was() -> None:
    assert load().Producer and version("rocketmq-python-client") == TESTED
    assert f"rocketmq-python-client=={TESTED}\n" in (ROOT / "requirements.lock").read_text()
    assert f'"rocketmq-python-client=={TESTED}"' in (ROOT / "pyproject.toml").read_text()


def test_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "version", lambda name: "5.1.3")
    with pytest.raises(InvalidArgumentError, match=rf"5\.1\.3.*pip install .*=={TESTED}"):
        load()
