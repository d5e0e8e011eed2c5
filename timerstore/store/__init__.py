"""The store as a program sees it: who makes each call of `watching/any_store.py`, how it ends.

    store.py        the public class
    readonly.py     a store that is opened to look at; one in which nothing fires
    switching.py    pausing: what the switches do
    close.py        it is flushed and let go
    handover.py     it is made fit for a RocketMQ broker before
    broker_files.py what a broker wants to read besides

What a call does stands below `calls/`, in the room of its name; here are the calls that have none.
"""
