"""What an open store does about damage: it looks for it, names it, passes it by.

Only queue entries are written again; of what else is damaged the next opening makes the index anew.

scrub.py         reads everything again, slowly
mend_entries.py  writes queue entries again
slot_scan.py     finds what a damaged unit hides
pass_lost.py     takes off the count what cannot be read
"""
