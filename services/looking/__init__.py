"""What is pending, as one instant of an open store shows it.

instant.py       one instant: cursors, with what judges the timers
timer_places.py  where timers stood then
due_order.py     the same in the order of due time, slot by slot
log_units.py     units in the order of the timer log
slot_units.py    units of slots, mapped on the way
level_timers.py  what waits in the delay levels
pending_rows.py  pending timers as rows
read_pending.py  messages of pending timers, in columns
timer_parts.py   where the parts of their messages lie
"""
