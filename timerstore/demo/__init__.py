"""The demonstration.

    demo.py    what `timerstore demo` does
    child.py   the process that is killed
    ledger.py  what was put, what has come

A room imports `core.py`, never the store.
"""
