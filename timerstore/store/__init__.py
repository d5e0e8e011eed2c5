"""The store as a program sees it: which room makes each call of `watching/anystore.py`.

    store.py       the public class
    readonly.py    a store that is opened to look at
    still.py       a store in which nothing fires
    realtimers.py  no manual clock moves real timers
    switching.py   pausing: what the switches do
    cleannow.py    when cleaning is done

What a call does stands in the room of its name; here are the calls that have none.
"""
