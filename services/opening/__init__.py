"""From what is on disk to a store that can be served.

recovery.py             the table of its steps; the timer index, emptied, cut, or a broker's
recovery_findings.py    what it found; how far it has come
recover_log.py          the scan of the commit log; where queues end, which files are gone
recover_pending.py      how many are pending; the counters of topics; the delay levels
recover_settled.py      what is done: sources of copies, what hopped, what was cancelled
recover_damage.py       files that were cut, what is torn at the log's end, or damaged
"""
