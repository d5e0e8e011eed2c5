"""The timer wheel: which slot a timer waits in, which timers still count.

timerwheel.py its durable slots, and checksums of their pages
place.py     placement: which slot a timer goes to; what is fixed for that
near.py      the timers of the claimed slots, in memory, by millisecond
judge.py     what is pending: the one place that says it
cancelled.py timers that were cancelled before their time
sets.py      the hash sets for that
"""
