"""The ways a store ends.

    close.py     it is flushed and let go
    handover.py  it is made fit for a RocketMQ broker before
    broker_files.py  what a broker wants to read besides

A room imports `core/`, never the store.
"""
