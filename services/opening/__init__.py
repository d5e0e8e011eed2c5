"""From what is on disk to a store that can be served.

recovery.py             the table of its steps
recovery_findings.py    what it found
recover_log.py          the scan of the commit log
recover_index.py        the timer index, emptied, cut, or a broker's
recover_hops.py         which unit of each message counts
recover_pending.py      how many are pending
recover_files.py        files that were cut or lost
recover_queues.py       where the queues end
recover_queue_files.py  queue files that are gone
recover_levels.py       from which message each level goes on
recover_deletes.py      the cancelled set
recover_counts.py       the counters of topics
recover_copies.py       sources that are done, and still ahead
recover_damage.py       where the log can be read again
recover_torn.py         what was torn at its end
progress.py             how far a long step has come
level_due_times.py      when a broker's level messages are due
"""
