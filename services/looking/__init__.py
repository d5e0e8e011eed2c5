"""What is pending, as one instant of an open store shows it.

instant.py       one instant: cursors, with what judges the timers
timer_places.py  where timers stood then, in slots, queues, delay levels
due_order.py     the same in the order of due time, slot by slot
read_units.py    units in the order of the timer log, or slot by slot
read_pending.py  messages of pending timers: in columns, as rows, their parts
"""
