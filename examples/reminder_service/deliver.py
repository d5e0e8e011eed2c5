"""What a reminder does in the end; all ways of planning it share this."""

from __future__ import annotations

import os
import time

from pydantic import BaseModel


class Reminder(BaseModel):
    """What a client asks for."""

    user: str
    text: str
    seconds: float


def deliver(user: str, text: str, attempt: int) -> None:
    """Send it: a mail server that is away at first, or slow, where the text asks for that."""
    if text.startswith("flaky") and attempt < 2:
        raise ConnectionError("the mail server is away")
    if text.startswith("slow"):
        write("begun", user, text, attempt)
        time.sleep(1.5)
    write("sent", user, text, attempt)


def report() -> None:
    """Write what was sent, once a day."""
    write("report", "all", "", 0)


def write(what: str, user: str, text: str, attempt: int) -> None:
    """Add a line to the file that SENT names, in one piece."""
    line = "\t".join((what, user, text, str(attempt))) + "\n"
    file = os.open(os.environ.get("SENT", "sent"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.close(file)
