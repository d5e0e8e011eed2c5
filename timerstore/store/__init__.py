"""The store as a program sees it: who makes each call of `watching/any_store.py`, how it ends.

    store.py     the public class
    readonly.py  a store that is opened to look at; one in which nothing fires
    switching.py pausing: what the switches do
    handover.py  it is flushed and let go; before, it is made fit for a RocketMQ broker

What a call does stands below `calls/`, in the room of its name; here are the calls that have none.
"""
