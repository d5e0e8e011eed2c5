"""What is pending, as one instant of an open store shows it.

instant.py       one instant: cursors, with what judges the timers
timer_places.py  where timers stood then: slots, queues, delay levels; in order of due time
read_units.py    units in the log's order, or slot by slot; messages of pending timers
"""
