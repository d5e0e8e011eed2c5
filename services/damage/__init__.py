"""What an open store does about damage: it looks for it, names it, passes it by.

Nothing is written again: an index of which a part is damaged is made anew by the next opening.

scrub.py         reads everything again, slowly
mend_entries.py  writes queue entries again
slot_scan.py     finds what a damaged unit hides
pass_lost.py     takes off the count what cannot be read
"""
