"""What was appended, read again: messages, units as rows, past what is damaged.

scan.py        a range of the commit log as rows of numbers; texts, properties as columns
units.py       units of the timer log as columns
reader.py      a store's directory, for reading alone
pastdamage.py  where reading goes on past what is damaged; which message is a copy of which
audit.py       messages or units as an auditor looks at them
"""
