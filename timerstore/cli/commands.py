"""All commands, in the order in which `--help` lists them."""

from timerstore.cli import (  # isort: skip
    reading,
    tracing,
    operating,
    top,
    tail,
    writing,
    importing,
    backlog,
    dead,
    consuming,
    serving,
    checking,
    exporting,
    keeping,
    upkeep,
    trying,
)
from timerstore.cli.app import app

__all__ = [
    "app",
    "backlog",
    "checking",
    "consuming",
    "dead",
    "exporting",
    "importing",
    "keeping",
    "operating",
    "reading",
    "serving",
    "tail",
    "top",
    "tracing",
    "trying",
    "upkeep",
    "writing",
]
