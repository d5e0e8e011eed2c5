"""A kit for tests of crashes of programs that use a store.

    disk.py     disks that lose their power, refuse, or do not wait
    damage.py   damage to files, by its kind
    ledger.py   what the commit log says of each timer; what a program was told, compared with it
    kills.py    a program that is killed, or loses its power, at each step

Nothing here is loaded before it is asked for, and nothing needs pytest.
"""

from __future__ import annotations

from timerstore.testing.damage import DAMAGE_KINDS, damage
from timerstore.testing.disk import FailingDisk, PowerCutError, PowerDisk, QuietDisk
from timerstore.testing.kills import Life, Program, say
from timerstore.testing.ledger import Account, Ledger, check_damaged, judge

__all__ = [
    "DAMAGE_KINDS",
    "Account",
    "FailingDisk",
    "Ledger",
    "Life",
    "PowerCutError",
    "PowerDisk",
    "Program",
    "QuietDisk",
    "check_damaged",
    "damage",
    "judge",
    "say",
]
