"""What an open store does about damage: it looks for it, names it, passes it by.

Nothing is mended in place: the next opening makes an index that is damaged anew.

scrub.py      reads everything again, slowly
entries.py    tells damaged queue entries, and leaves them
slot_scan.py  finds what a damaged unit hides
pass_lost.py  takes off the count what cannot be read
"""
