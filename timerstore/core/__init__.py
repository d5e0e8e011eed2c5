"""What an open store consists of, on which the rooms of its calls work.

    core.py          engine, clock, threads, offsets, lock: the class `Core`
    readonlycore.py  a core that only looks: no file is changed, no lock taken
    gate.py          calls that hold a store open while they run
    unitless.py      copies of timers that have no unit yet, as columns
    waiting.py       a thread sleeps until a kernel has done something for it
    interpreter.py   what the running Python must be
    ahead.py         kernels at hand before a store is open
    directory.py     the folder: found, or made, with its lock
    clockmark.py     which kind of clock the timers go by
    offsets.py       committed offsets of all groups
    popped.py        what a broker's clients had received and not acknowledged
    switches.py      what an operator has stopped for a while

It knows none of the rooms that work on it.
"""
