"""The ways a store ends.

    close.py     it is flushed and let go
    handover.py  it is made fit for a RocketMQ broker before

A room imports `core.py`, never the store.
"""
