"""timerstore_worker.py runs tasks until SIGTERM or SIGINT comes."""
