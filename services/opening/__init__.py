"""From what is on disk to a store that can be served.

recovery.py             the table of its steps
recovery_findings.py    what it found; how far it has come
recover_log.py          the scan of the commit log
recover_index.py        the timer index, emptied, cut, or a broker's
recover_pending.py      how many are pending; the counters of topics
recover_queues.py       where the queues end, which of their files are gone
recover_levels.py       from which message each level goes on; when a broker's are due
recover_settled.py      what is done: sources of copies, what hopped, what was cancelled
recover_damage.py       files that were cut, what is torn at the log's end, or damaged
"""
