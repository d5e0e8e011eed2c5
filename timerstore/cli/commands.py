"""All commands, in the order in which `--help` lists them."""

from timerstore.cli import (  # isort: skip
    looking,
    trace,
    operating,
    top,
    tail,
    changes,
    importing,
    backlog,
    dead,
    consume,
    serving,
    checking,
    pipelines,
    exporting,
    keeping,
    upkeep,
    trying,
)
from timerstore.cli.app import app

__all__ = [
    "app",
    "backlog",
    "changes",
    "checking",
    "consume",
    "dead",
    "exporting",
    "importing",
    "keeping",
    "looking",
    "operating",
    "pipelines",
    "serving",
    "tail",
    "top",
    "trace",
    "trying",
    "upkeep",
]
