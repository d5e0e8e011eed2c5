"""Docstrings as Markdown, for the pages of the reference: examples, names that lead somewhere."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?m)^>>> .*(?:\n(?!\s*$).*)*")
_ERROR = re.compile(r"\b(?<![`.\[])([A-Z]\w+Error)\b(?![`\]])")
_NAME = re.compile(r"`((?:timerstore\.)?)((?:[A-Z]\w+|open|connect|serve|backup)(?:\.\w+)?)`")
_MOMENT = re.compile(r"Moment\[([^]]+)\]\(['\"](.+)['\"]\)")
_FENCE = re.compile(r"(?s)\n*```.*?```")
_STORES = ("aio.loopstore.TimerStore", "watching.any_store.AnyStore", "store.store.TimerStore")


class Readable(griffe.Extension):
    """Changes the text of what was read, not of what runs."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence each example; lead names of errors, calls, settings to their places."""
        if isinstance(obj, griffe.Attribute) and (moment := _MOMENT.fullmatch(str(obj.value))):
            obj.annotation, obj.labels = moment[1], {"property"}
            obj.docstring = griffe.Docstring(moment[2], parent=obj)
        if not obj.docstring:
            return
        parts, at = [], 0
        text = obj.docstring.value
        for match in _EXAMPLE.finditer(text):
            parts += [linked(text[at : match.start()]), fenced(match[0])]
            at = match.end()
        obj.docstring.value = "".join([*parts, linked(text[at:])])

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Show the calls of the store for asyncio, which are the store's own, awaited."""
        looped, table, store = (pkg[name] for name in _STORES)
        for name, member in [*looped.members.items()]:
            if member.docstring is not None or name.startswith("_"):
                continue
            call = (table if name in table.members else store)[name]
            looped.set_member(name, awaited(call, member.lineno))


def awaited(call: griffe.Function, line: int | None) -> griffe.Function:
    """Return a call as it is awaited, at its line in the file; its examples do not await it."""
    shown = griffe.Function(call.name, lineno=line, endlineno=line, parameters=call.parameters)
    shown.returns, shown.labels = call.returns, {"async"}
    shown.docstring = griffe.Docstring(_FENCE.sub("", call.docstring.value), parent=shown)
    return shown


def fenced(example: str) -> str:
    """Write an example as a program, to be copied; with its output, where it has one, as it is."""
    lines = [re.sub(r"\s*# doctest:.*", "", line) for line in example.split("\n")]
    if all(line.startswith((">>> ", "... ", "...")) for line in lines):
        return "\n".join(["```python", *(line[4:] for line in lines), "```"])
    return "\n".join(["```pycon", *lines, "```"])


def linked(text: str) -> str:
    """Lead names to where the reference has them, if it does."""

    def place(match: re.Match[str]) -> str:
        name = match[2]
        is_setting = name.startswith("Config.")
        where = name.removeprefix("Config.") if is_setting else f"timerstore.{name}"
        shown = f"<code>{match[1]}{name}</code>"
        return f'<autoref identifier="{where}" optional>{shown}</autoref>'

    text = _ERROR.sub(
        lambda match: f'<autoref identifier="{match[1].lower()}" optional>{match[1]}</autoref>',
        text,
    )
    return _NAME.sub(place, text)
