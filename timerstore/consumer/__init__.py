"""The consumer: handlers in threads, all at once or in order.

    consumer.py         the public class
    consumersettings.py what it was told: settings, the rules of retries, hooks
    messagesource.py    where its messages come from, in whichever process the store is open
    storesource.py      an open store as such
    remotesource.py     what asks another process: a client, a cluster
    subscription.py     a topic's handler, pulling within limits
    ordered.py          the same for an ordered consumer
    running.py          as a program's main part, until a signal comes; what it is made of
    threads.py          the threads, which pull and handle in turn
    handling.py         a handler's call, with what becomes of its messages

A room imports `core/`, never the store.
"""
