"""All commands, in the order in which `--help` lists them."""

from timerstore.cli import (  # isort: skip
    reading,
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
    "checking",
    "consuming",
    "exporting",
    "importing",
    "reading",
    "trying",
    "upkeep",
    "writing",
]
