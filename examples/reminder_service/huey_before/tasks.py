"""The tasks, for huey's consumer as for the web workers."""

from __future__ import annotations

from typing import Any

from deliver import deliver, report
from huey import SqliteHuey, crontab

RETRIES = 4

huey = SqliteHuey("reminders", filename="huey.sqlite")


@huey.task(retries=RETRIES, retry_delay=1, context=True)
def remind(user: str, text: str, task: Any = None) -> None:
    """Deliver; what raises is tried again."""
    deliver(user, text, RETRIES - task.retries)


@huey.periodic_task(crontab(hour="9", minute="0"))
def daily() -> None:
    """Report at nine."""
    report()


def plan(user: str, text: str, seconds: float) -> None:
    """Plan a reminder, in place of the one before."""
    cancel(user)
    huey.put(f"reminder:{user}", remind.schedule((user, text), delay=seconds).id)


def cancel(user: str) -> bool:
    """Cancel the reminder that was planned last, if it was not cancelled before."""
    id = huey.get(f"reminder:{user}")
    if id is None:
        return False
    huey.revoke_by_id(id, revoke_once=True)
    return True
