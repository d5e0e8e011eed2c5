"""What an open store consists of, on which the rooms of its calls work.

    core.py         engine, clock, threads, offsets, lock: the class `Core`
    readonlycore.py a core that only looks: no file is changed, no lock taken
    gate.py         calls that hold a store open while they run
    waiting.py      a thread sleeps until a kernel has done something for it
    interpreter.py  what the running Python must be
    load_kernels.py kernels at hand before a store is open
    directory.py    the folder: found, or made, with its lock; which kind of clock it goes by
    offsets.py      committed offsets of all groups, and what clients of a broker held
    switches.py     what an operator has stopped for a while

It knows none of the rooms that work on it.
"""
