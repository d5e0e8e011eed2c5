"""The page of the shell's commands, docs/reference/cli.md, out of the commands themselves.

python -P docs/hooks/commands.py     writes it anew; with - to standard output, for a test
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from timerstore.cli.commands import app

PAGE = Path(__file__).resolve().parents[1] / "reference" / "cli.md"
HEAD = """# Commands

```
timerstore COMMAND PATH …
```

`pip install '.[cli]'` brings the command. `PATH` is the store's folder. Every command takes
`--help`; nearly all take `--json`, which writes one JSON object a line, for programs. Results go to
standard output, all else to standard error.

A time is `now`, `+1h`, `tomorrow 09:00`, `2026-11-22`, ISO 8601, or a number: milliseconds since
1970. Where local time was meant, standard error says which instant was understood.

## Exit status

| status | means |
|---|---|
| 0 | fine |
| 1 | damage; a rule fails. Of `get`, `trace`, `cancel`, `reschedule`, `dead show`: not there |
| 2 | wrong usage: an argument, an option, a setting that cannot be |
| 3 | no store there; another process has it; its files are refused. Of `health`: nobody has it |
| 4 | no room, a disk that fails, or the store has stopped |
| 5 | of `health --strict`: dead letters wait, or what nobody reads; of `pipeline run`: a warning |
| 70 | an error of timerstore's own; please report it |
| 130 | interrupted, with Ctrl-C. 128 + the signal's number for other signals |

`serve`, `health` and others say below what a status means there.
"""


def page() -> str:
    """Write the whole page."""
    group: Any = typer.main.get_command(app)
    panels: dict[str, list[str]] = {}
    for name, command in group.commands.items():
        panels.setdefault(command.rich_help_panel, []).append("\n".join(section(name, command)))
    parts = [f"## {panel}\n\n" + "\n".join(found) for panel, found in panels.items()]
    return "\n".join([HEAD, *parts])


def section(name: str, command: Any, level: int = 3) -> Iterator[str]:
    """Write what one command does, and what it takes."""
    inner = getattr(command, "commands", {})
    said, _, example = command.help.partition("\n\nExample: ")
    yield f"{'#' * level} {name}\n\n{unwrapped(said)}\n"
    if example:
        yield f"```\n{' '.join(example.split())}\n```\n"
    if not inner:
        yield "| argument, option | takes | |\n|---|---|---|"
        yield from (row(each) for each in command.params if each.name != "help" and not each.hidden)
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


if __name__ == "__main__":
    if sys.argv[1:] == ["-"]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page())
