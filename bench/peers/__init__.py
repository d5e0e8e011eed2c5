"""The same workloads through whatever keeps timers.

    timers.py      what a peer can do; bodies that are checked
    server.py      a server that a peer starts, and stops
    embedded.py    timerstore, SQLite, LMDB, RocksDB: in this process
    redis.py       Redis: a sorted set
    postgres.py    PostgreSQL: a table, SKIP LOCKED
    beanstalkd.py  beanstalkd: delayed jobs
    workloads.py   what each of them plays

`peering.py` plays rounds in turns.
"""
