"""What is appended: messages, entries of queues, entries of indexes, counts.

frame.py         new messages and copies, framed in a stage
compose.py       single messages, whose properties differ each time
append.py        the one appender: commit log with queues
filler.py        what takes the place of a lost part of a log
ackrecord.py     who has consumed what, when a put says so
tally.py         counts of timers by topic
tallysums.py     their sums over time
consumequeue.py  the entries of a topic's queue
keyindex.py      which messages carry a key, RocketMQ's IndexFile
"""
