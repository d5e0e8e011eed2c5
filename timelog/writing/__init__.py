"""What is appended: messages, entries of queues, entries of indexes, counts.

frame.py         new messages and copies, framed in a stage
compose.py       single messages, fillers, acknowledgement records
append.py        the one appender: commit log with queues
tally.py         counts of timers by topic, and their sums over time
consumequeue.py  the entries of a topic's queue
keyindex.py      which messages carry a key, RocketMQ's IndexFile
"""
