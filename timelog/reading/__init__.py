"""What was appended, read again: messages, units as rows, past what is damaged.

scan.py        a range of the commit log as rows of numbers
columns.py     messages as columns: texts, properties
units.py       units of the timer log as columns
copies.py      which message is a copy of which, if a broker does not say
reader.py      a store's directory, for reading alone
pastdamage.py  where reading goes on past what is damaged; where a log ends
audit.py       messages or units as an auditor looks at them
"""
