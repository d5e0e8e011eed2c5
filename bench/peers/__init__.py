"""The same workloads through whatever keeps timers.

    timers.py      what a peer can do; bodies that are checked
    server.py      a server that a peer starts, and stops
    usage.py       what peers take of the machine
    embedded.py    timerstore, SQLite, LMDB, RocksDB, a plain file: in this process
    redis.py       Redis: a sorted set
    postgres.py    PostgreSQL: a table, SKIP LOCKED
    beanstalkd.py  beanstalkd: delayed jobs
    queues.py      huey, APScheduler: jobs in SQLite, in this process
    celery.py      Celery: tasks with an ETA in Redis, workers
    rocketmq.py    RocketMQ: its own timer, in its JVM
    workloads.py   what each of them plays
    tables.py      what was found, in a file, then in a page

`peering.py` plays rounds in turns.
"""
