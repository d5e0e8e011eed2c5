"""The store as a program sees it: who makes each call of `watching/any_store.py`, how it ends.

    store.py     the public class; pausing; stores that refuse
    handover.py  it is flushed and let go; before, it is made fit for a RocketMQ broker

What a call does stands below `calls/`, in the room of its name; here are the calls that have none.
"""
