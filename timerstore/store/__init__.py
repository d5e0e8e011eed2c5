"""The store as a program sees it: which room makes each call of `watching/calls.py`.

    store.py       the public class
    readonly.py    a store that is opened to look at; one in which nothing fires
    switching.py   pausing: what the switches do
    close.py       closing, in order
    broker_files.py what a broker reads beside the logs, written at the close
    handover.py    the directory becomes a broker's

What a call does stands in the room of its name; here are the calls that have none.
"""
