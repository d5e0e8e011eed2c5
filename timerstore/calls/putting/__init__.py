"""Putting: from arguments to messages in the log.

    putting.py    the calls
    putter.py     one timer or many, composed or framed by a kernel
    short_way.py  a single put as one compiled call
    bylevel.py    messages of RocketMQ's delay levels
    admission.py  waiting until enqueue-get has caught up
    congestion.py refusing a put into a slot that is full
    space.py      refusing a put for which `max_bytes` leaves no room

A room imports `core/`, never the store.
"""
