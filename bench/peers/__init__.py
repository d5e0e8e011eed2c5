"""The same workloads through whatever keeps timers.

timers.py      what a peer can do; bodies that are checked
embedded.py    timerstore, SQLite, LMDB, RocksDB: in this process
queues.py      timerstore's consumer, huey, APScheduler: jobs, in this process
server.py      a server that a peer starts, and stops; its clients
redis.py       Redis: a sorted set
postgres.py    PostgreSQL: a table, SKIP LOCKED
celery.py      Celery: tasks with an ETA in Redis, workers
rocketmq.py    RocketMQ: its own timer, in its JVM
workloads.py   what each of them plays
tables.py      tables of what was found
"""
