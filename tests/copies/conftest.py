"""Fixtures for remote backups."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import run
from tests.copies.kept import Kept
from tests.rigs.objects import BUCKET, s3_server
from tests.spark.conftest import spark

__all__ = ["run", "spark"]


@pytest.fixture(autouse=True)
def all_are_closed(tmp_path: Path) -> Iterator[None]:
    """Close all stores of a test, before their folders go."""
    yield
    while Kept.made:
        Kept.made.pop().close()


@pytest.fixture(scope="session")
def s3_environment() -> Iterator[dict[str, str]]:
    """A server of S3 for all tests of a process."""
    with s3_server() as environment:
        yield environment


@pytest.fixture
def s3(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """An address in a bucket at which nothing lies yet."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}/timers"


@pytest.fixture(params=["file", pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.prove])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address at which nothing lies yet: in a folder, or in a bucket."""
    if request.param == "file":
        return f"file://{tmp_path}/objects"
    address: str = request.getfixturevalue("s3")
    return address
