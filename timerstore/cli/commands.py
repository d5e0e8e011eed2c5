"""All commands, in the order in which `--help` lists them."""

from timerstore.cli import (  # isort: skip
    writing,
)

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
