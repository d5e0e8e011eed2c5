"""What calls do in one kernel, beside the services.

by_id.py         `get`, `cancel` or `reschedule` of one timer
cancel.py        cancelling what lies ahead, in one kernel
appending.py     many puts, deletes, what was composed
first_puts.py    the first put of a timer, by what its id says; all that name it
key_search.py    looks for messages by their key
"""
