"""Long plays of a store whose counts must agree to the last timer.

    ledger.py     what was put and what came, in files that outlive a kill
    clock.py      the system's clock as a process sees it, moved by another
    load.py       what putters and consumers do
    scenarios.py  the scenarios: settings, who puts, who consumes, what goes wrong meanwhile
    audit.py      names lost or early timers meanwhile
    worker.py     the process with the store
    watch.py      its memory, descriptors, disk, as its parent sees them
    judge.py      whether all agrees at the end

`stressing.py` plays one: it starts the worker, shows how it goes, kills it where that is the point.
"""
