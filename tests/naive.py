"""Slow, obvious twins of everything on disk, to compare the kernels with.

Nothing here imports timerstore: what both agree on was read twice out of one description,
`docs/format.md`.

    naive_message.py    messages and the commit log
    naive_index.py      consume queue, timer log, timer wheel, cursors, JSON
    naive_rules.py      when a timer is due, where it waits, what an entry stands for

The services have theirs in naive_services.py and naive_copying.py.
"""

from tests.naive_index import *  # noqa: F403
from tests.naive_message import *  # noqa: F403
from tests.naive_rules import *  # noqa: F403
