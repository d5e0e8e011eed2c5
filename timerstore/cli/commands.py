"""All commands, in the order in which `--help` lists them: each file adds its own to `app`."""
# ruff: noqa: F401

from timerstore.cli import (  # isort: skip
    looking,
    operating,
    top,
    changes,
    checking,
    importing,
    dead,
    consume,
    pipelines,
    keeping,
    clustermove,
    warmup,
)
from timerstore.cli.app import Command, app

__all__ = ["app"]

for group in (app, dead.dead, pipelines.pipeline):
    for command in group.registered_commands:
        command.cls = Command
