"""What each address of the page shows, and what each form does: calls of the store, and templates.

Each view takes the fields of the address, and returns what its template shows; each change takes
those of a form, and returns where to go next. Strangers chose all names and bodies: templates
escape them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from timerstore.errors import InvalidArgumentError
from timerstore.page.guard import Fields
from timerstore.page.listing import BODY_BYTES, SKIP_MAX, list_some
from timerstore.values.amounts import shown_body, shown_from, shown_time
from timerstore.values.check_arguments import DUE_MS_MAX
from timerstore.values.times import parse_delay, parse_instant
from timerstore.watching.sections import cell_text, fact_text, found_rows, sections

if TYPE_CHECKING:
    from timerstore.calls.consuming.dead_letters import DeadLetter
    from timerstore.page.history import History
    from timerstore.watching.any_store import AnyStore

ROWS: Final = 50
"""Of each table, and of a group's dead letters."""
AT_MAX: Final = 1 << 62
_LETTERS_AT_ONCE: Final = 8
"""Whose whole bodies are in memory together."""
_BODY_CHARACTERS: Final = 4_096
LOOKS: Final = ("overview", "pending", "timer", "dead", "curves")
_DONE: Final = {"retry": "put back", "drop": "dropped"}
CHANGES: Final = ("retry", "drop", "pause", "resume")


class Views:
    """One store as pages."""

    def __init__(self, store: AnyStore, history: History) -> None:
        self._store, self._history = store, history

    def overview(self, fields: Fields) -> dict[str, Any]:
        """Show how the store is, with some rows of each table."""
        health, at = self._store.health(), _number(fields, "at", AT_MAX)
        page = sections(self._store.stats().to_dict(), health.now_ms)
        return {"health": health, "page": page, "at": at, "rows_max": ROWS}

    def pending(self, fields: Fields) -> dict[str, Any]:
        """List what is pending: by topic, key, time, or what contains a text."""
        asked = {name: _one(fields, name) for name in ("topic", "key", "start", "end", "text")}
        start_ms, end_ms = (
            parse_instant(asked[name]).ms if asked[name] else None for name in ("start", "end")
        )
        if _one(fields, "due"):  # where the page before this one has ended
            start_ms = _number(fields, "due", DUE_MS_MAX)
        topic, skip = asked["topic"] or None, _number(fields, "skip", SKIP_MAX)
        count, now_ms = self._store.count(topic), self._store.health().now_ms
        if topic and not count and topic not in {each.topic for each in self._store.stats().topics}:
            raise InvalidArgumentError(f"No topic {topic!r} is known. Is it misspelt?")
        bounds: Any = {"start_ms": start_ms, "end_ms": end_ms, "topic": topic, "skip": skip}
        bounds |= {"text": asked["text"], "key": asked["key"] or None}
        timers, rest = list_some(self._store, **bounds) if count else ([], None)
        onward = until_ms = None
        if rest is not None:
            until_ms = rest[0]
            end = "" if end_ms is None else shown_time(end_ms)  # +2h would be another time then
            onward = link("/pending", **asked | {"end": end}, due=rest[0], skip=rest[1])
        told = {"asked": asked, "timers": timers, "count": count, "now_ms": now_ms}
        return told | {"next": onward, "until_ms": until_ms}

    def timer(self, fields: Fields) -> dict[str, Any]:
        """Show what became of a timer; of one that is pending all that was put."""
        found = self._store.find(_one(fields, "id"))
        timer = self._store.get(found.id) if found.state == "pending" else None
        body = None if timer is None else shown_body(timer.body, _BODY_CHARACTERS)
        return {"rows": found_rows(found), "timer": timer, "body": body}

    def dead(self, fields: Fields) -> dict[str, Any]:
        """List the dead letters of a group."""
        group, at = _one(fields, "group"), _number(fields, "at", AT_MAX)
        letters: list[DeadLetter] = []
        for skip in range(at, at + ROWS + 1, _LETTERS_AT_ONCE):
            some = self._store.dead_letters(group, _LETTERS_AT_ONCE, skip=skip)
            letters += [replace(each, body=each.body[:BODY_BYTES]) for each in some]
        more = at + ROWS if len(letters) > ROWS else None
        now_ms = self._store.health().now_ms
        told = {"group": group, "letters": letters[:ROWS], "next": more, "now_ms": now_ms}
        counts = {}
        if not letters or "sure" in fields:
            counts = {each.group: each.dead_letter_count for each in self._store.stats().groups}
            if group not in counts:
                raise InvalidArgumentError(f"No group {group!r} is known. Is it misspelt?")
        done = _DONE.get(_one(fields, "what")), _number(fields, "done", AT_MAX)
        return told | {"done": done, "sure": counts.get(group) if "sure" in fields else None}

    def curves(self, fields: Fields) -> dict[str, Any]:
        """Draw rates, lateness, what is pending."""
        try:
            curves = self._history.curves()
        except ImportError as e:
            raise InvalidArgumentError(
                "Curves need Matplotlib. Install the extra: pip install 'timerstore[page]'"
            ) from e
        return {"curves": {title: Markup(image) for title, image in curves.items()}}

    # --- changes

    def retry(self, form: Fields) -> str:
        """Put dead letters back."""
        return self._settle(form, "retry")

    def drop(self, form: Fields) -> str:
        """Give dead letters up for good."""
        return self._settle(form, "drop")

    def _settle(self, form: Fields, what: str) -> str:
        group = _one(form, "group")
        ids = [unquote(each, errors="surrogateescape") for each in form.get("id", [])]
        if bool(ids) == bool(_one(form, "all")):
            raise InvalidArgumentError('Choose letters, or "all of this group", not both.')
        if what == "drop" and not ids and not _one(form, "sure"):
            return link("/dead", group=group, sure=1)
        count = 0
        if self._store.dead_letters(group, 1):  # else the call makes the group known
            count = getattr(self._store, f"{what}_dead_letters")(group, ids=ids or None)
        return link("/dead", group=group, what=what, done=count)

    def pause(self, form: Fields) -> str:
        """Stop putting, firing or consuming for a while."""
        what: Any = _one(form, "what")  # the call refuses what is none
        duration = parse_delay(_one(form, "for")) if _one(form, "for") else None
        keep, group = bool(_one(form, "keep")), _one(form, "group") or None
        self._store.pause(what, group=group, duration=duration, keep=keep)
        return "/"

    def resume(self, form: Fields) -> str:
        """End a pause."""
        what: Any = _one(form, "what")
        self._store.resume(what, group=_one(form, "group") or None)
        return "/"


def _one(fields: Fields, name: str) -> str:
    text = fields.get(name, [""])[0]
    return text if name in ("key", "text") else text.strip()


def _number(fields: Fields, name: str, most: int) -> int:
    text = _one(fields, name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise InvalidArgumentError(f"{name} is {text[:50]!r}. Use a number up to {most:,}.")
    return int(text)


# --- as HTML


def link(address: str, **fields: object) -> str:
    """Return an address with fields; a broker's name may hold what is no Unicode."""
    return f"{address}?{urlencode(fields, errors='surrogateescape')}"


def _finish(value: Any) -> Any:
    """Return what a template shows of a value: nothing that could steer what stands around it."""
    if isinstance(value, Markup):
        return value
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() or c.isspace() else ascii(c)[1:-1] for c in text)


_templates: Final = Environment(
    loader=PackageLoader("timerstore.page"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_finish,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals.update(link=link, cell_text=cell_text, fact_text=fact_text)
_templates.filters |= {"ago": shown_from, "body": shown_body, "time": shown_time}
_templates.filters["quoted"] = lambda text: quote(text, errors="surrogateescape")
_templates.filters["commas"] = "{:,}".format


def render(name: str, **told: Any) -> bytes:
    """Return a page as HTML."""
    return _templates.get_template(name).render(told).encode("utf-8", "backslashreplace")
