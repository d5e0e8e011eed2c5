"""The one process in which APScheduler may run; the web workers call it."""

from __future__ import annotations

import os
import signal
import threading
from datetime import UTC, datetime, timedelta
from multiprocessing.managers import BaseManager

from apscheduler.jobstores.base import JobLookupError
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from deliver import deliver

ADDRESS = os.environ.get("SCHEDULER", "scheduler.sock")
SECRET = b"reminders"
WAITS_S = (1, 2, 30, 120)

scheduler = BackgroundScheduler(
    jobstores={"default": SQLAlchemyJobStore("sqlite:///jobs.sqlite")},
    job_defaults={"misfire_grace_time": None},
    timezone="UTC",
)


def remind(user: str, text: str, attempt: int) -> None:
    """Deliver; what fails is planned again by hand, beside what was planned for the user since."""
    try:
        deliver(user, text, attempt)
    except ConnectionError:
        if attempt < len(WAITS_S):
            plan(f"{user}/retry", user, text, WAITS_S[attempt], attempt + 1)


def plan(id: str, user: str, text: str, seconds: float, attempt: int) -> None:
    """Add a job, in place of one with the same id."""
    due = datetime.now(UTC) + timedelta(seconds=seconds)
    what = {"args": (user, text, attempt), "id": id, "replace_existing": True}
    # By its name in a module that can be imported, as the job store wants it.
    scheduler.add_job("scheduler:remind", "date", run_date=due, **what)


class Planner:
    """What the web workers may call."""

    def plan(self, user: str, text: str, seconds: float) -> None:
        """Plan a reminder, in place of the one before."""
        self.cancel(user)
        plan(user, user, text, seconds, 0)

    def cancel(self, user: str) -> bool:
        """Cancel a reminder, or its retry."""
        found = False
        for id in (user, f"{user}/retry"):
            try:
                scheduler.remove_job(id)
                found = True
            except JobLookupError:
                pass
        return found


def main() -> None:
    """Run until SIGTERM; what runs then may end."""
    scheduler.add_job("deliver:report", "cron", hour=9, id="daily", replace_existing=True)
    scheduler.start()
    planner, ended = Planner(), threading.Event()
    BaseManager.register("planner", callable=lambda: planner)
    server = BaseManager(ADDRESS, SECRET).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    scheduler.shutdown(wait=True)


if __name__ == "__main__":
    # The job store names functions by their module, which is to be this one, once.
    import scheduler as itself

    itself.main()
