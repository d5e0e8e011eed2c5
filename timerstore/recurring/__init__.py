"""Recurring jobs: what is put by a schedule that survives the program.

    schedules.py starting, stopping and carrying on the jobs of a store
    when.py      every so often, or by a cron expression; what a job says of itself

It is above the store and uses only public calls, so it works with every object that has them.
"""

from timerstore.recurring.schedules import Schedules, scheduled_ms
from timerstore.recurring.when import Cron, Every, Job, Missed, cron, every

__all__ = ["Cron", "Every", "Job", "Missed", "Schedules", "cron", "every", "scheduled_ms"]
