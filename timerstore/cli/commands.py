"""All commands, in the order in which `--help` lists them."""

from timerstore.cli import (  # isort: skip
    reading,
    backlog,
    writing,
    importing,
    consuming,
    checking,
    exporting,
    upkeep,
    trying,
)
from timerstore.cli.app import app

__all__ = [
    "app",
    "backlog",
    "checking",
    "consuming",
    "exporting",
    "importing",
    "reading",
    "trying",
    "upkeep",
    "writing",
]
