"""All commands, in the order in which `--help` lists them."""

from timerstore.cli import (  # isort: skip
    looking,
    find,
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
    clustermove,
    warmup,
)
from timerstore.cli.app import Command, app

__all__ = [
    "app",
    "backlog",
    "changes",
    "checking",
    "clustermove",
    "consume",
    "dead",
    "exporting",
    "find",
    "importing",
    "keeping",
    "looking",
    "operating",
    "pipelines",
    "serving",
    "tail",
    "top",
    "upkeep",
    "warmup",
]

for group in (app, dead.dead, pipelines.pipeline):
    for command in group.registered_commands:
        command.cls = Command
