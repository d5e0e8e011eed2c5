"""Watching: what an operator wants to know of a store.

    any_store.py    the calls of a store: name, arguments, result, document
    common_calls.py those that a client of a RocketMQ cluster has too
    find.py         what became of a timer, by its id
    groups.py       how far each group is behind, what became of what it read
    health.py       whether it is healthy, since when not, what to do
    services.py     what each service does or waits for; how far copies elsewhere lag
    sections.py     what a store tells of itself, as facts and tables, for whoever shows it
    topics.py       what each topic holds, when its timers fall due; what fires, as it fires
    stats.py        what `stats()` returns

A room imports `core/` and other rooms, never the store.
"""
