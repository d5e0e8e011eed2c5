"""Timers that are put in the transaction of the program's own database: both, or neither.

    table.py     the tables; putting a row; the relay's own connection to SQLite or PostgreSQL
    relay.py     takes rows out of the table and puts each into a store, once

It is above the store and uses only public calls, so it works with every object that has them.
"""

from timerstore.outbox.relay import Relay
from timerstore.outbox.table import Outbox

__all__ = ["Outbox", "Relay"]
