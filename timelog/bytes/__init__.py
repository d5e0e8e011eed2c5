"""What the bytes on disk mean, message by message, unit by unit: no file is touched here.

format.py         every byte that stands on disk, declared once
limits.py         how large a message may be
text.py           numbers as text, inside properties
message.py        the parts of a message in its bytes
decode.py         one message as Python values; ids, and who a timer is
unit.py           the 52-byte units of the timer log
blank.py          what closes a segment
"""
