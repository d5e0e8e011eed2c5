"""Putting: from arguments to messages in the log.

    putting.py   the calls; one timer or many, composed or framed by a kernel
    short_way.py a single put as one compiled call
    admission.py when a put waits, or is refused

A room imports `core/`, never the store.
"""
