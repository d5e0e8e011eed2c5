"""All commands, in the order in which `--help` lists them."""

from timerstore.cli import (  # isort: skip
    reading,
    writing,
    consuming,
    checking,
    exporting,
    keeping,
    upkeep,
    trying,
)
from timerstore.cli.app import app

__all__ = [
    "app",
    "checking",
    "consuming",
    "exporting",
    "keeping",
    "reading",
    "trying",
    "upkeep",
    "writing",
]
