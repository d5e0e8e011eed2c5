"""The consumer: handlers in threads, all at once or in order.

    consumer.py       the public class
    subscription.py   a topic's handler, pulling within limits
    ordered.py        the same for an ordered one
    lines.py          which message of a line comes next
    running.py        as a program's main part, until a signal comes
    threads.py        the threads, which pull and handle in turn
    handling.py       a handler's call, with what becomes of its messages
    retry_rules.py    the rules of that; docs/consumer.md has them as a table
    consumerstats.py  how much it handles
    needs.py          what it needs of a store, wherever that is
    hooks.py          a program's code around each call

A room imports `core.py`, never the store.
"""
