"""The timer wheel: which slot a timer waits in, which timers still count.

timerwheel.py its durable slots, checksums of their pages; which slot a timer goes to
near.py       the timers of the claimed slots, in memory, by millisecond
judge.py      what is pending: the one place that says it
cancelled.py  timers that were cancelled before their time, the hash sets for that
"""
