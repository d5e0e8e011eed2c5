"""The consumer: handlers in threads, all at once or in order.

    consumer.py         the public class; as a program's main part, until a signal comes
    consumersettings.py what it was told: settings, the rules of retries, hooks
    sources.py          an open store as such, with a subscription of an ordered consumer; what asks
                        another process: a client, a cluster
    subscription.py     a topic's handler, pulling within limits; where messages come from
    handling.py         a handler's call, with what becomes of its messages
    threads.py          the threads: who has nothing to do pulls

A room imports `core/`, never the store.
"""
