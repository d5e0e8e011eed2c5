"""What the site says of each of the shell's commands, out of the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from timerstore.cli.commands import app

COMMON = {"as_json", "config"}
FOLDER = "The store's folder."
"""Arguments that the head of the page tells of."""


def sections() -> str:
    """Write a section for each panel of `timerstore --help`."""
    group: Any = typer.main.get_command(app)
    panels: dict[str, list[str]] = {}
    for name, command in group.commands.items():
        if command.hidden:
            continue
        panels.setdefault(command.rich_help_panel, []).append("\n".join(section(name, command)))
    parts = [f"## {panel}\n\n" + "\n".join(found) for panel, found in panels.items()]
    return "\n".join(parts)


def section(name: str, command: Any, level: int = 3) -> Iterator[str]:
    """Write what one command does, and what it takes."""
    inner = getattr(command, "commands", {})
    said, _, example = command.help.partition("\n\nExample: ")
    yield f"{'#' * level} {name}\n\n{unwrapped(said)}\n"
    if example:
        yield f"```\n{' '.join(example.split())}\n```\n"
    shown = [each for each in command.params if each.name != "help" and not each.hidden]
    shown = [each for each in shown if each.name not in COMMON and each.help != FOLDER]
    if not inner and shown:
        yield "| argument, option | takes | |\n|---|---|---|"
        yield from map(row, shown)
        yield ""
    for other, its in inner.items():
        yield from section(f"{name} {other}", its, level + 1)


def row(param: Any) -> str:
    """Write one argument, or one option."""
    is_option = param.param_type_name == "option"
    names = [*param.opts, *param.secondary_opts] if is_option else [param.metavar or param.name]
    kind = param.type_descriptor.annotation
    takes = "" if kind is bool else "`" + getattr(kind, "__name__", str(kind)).lower() + "`"
    if getattr(kind, "__args__", None):
        takes = ", ".join(f"`{each}`" for each in kind.__args__ if isinstance(each, str)) or (
            f"`{kind.__args__[0].__name__}`, repeated"
        )
    said = unwrapped(param.help or "")
    if not is_option and not param.required:
        said += " May be left out."
    if param.default not in (None, False, True, (), []) and not callable(param.default):
        said += f" Default: `{getattr(param.default, 'value', param.default)}`."
    if param.default is True and param.secondary_opts:
        said += f" Default: `{param.opts[0]}`."
    return f"| {', '.join(f'`{each}`' for each in names)} | {takes} | {said.strip()} |"


def unwrapped(text: str) -> str:
    """Join the lines of each paragraph; an asterisk, a bar are themselves."""
    paragraphs = (" ".join(each.split()) for each in text.split("\n\n"))
    return "\n\n".join(paragraphs).replace("|", "\\|").replace("*", "\\*")
