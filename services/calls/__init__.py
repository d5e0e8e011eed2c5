"""What calls do in one kernel, beside the services.

put_batch.py     many puts
by_id.py         `get`, `cancel` or `reschedule` of one timer
cancel_ahead.py  cancelling what lies ahead, in one kernel
deletes.py       what a cancel leaves in the log
find_id.py       messages that name a timer, in the order of a queue
first_puts.py    the first put of a timer, by what its id says
key_search.py    looks for messages by their key
"""
