"""The commands of `manage.py`.

timerstore_worker.py  runs tasks until SIGTERM or SIGINT
"""
