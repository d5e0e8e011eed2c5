"""What an open store does about damage: it looks for it, writes again, passes by.

scrub.py         reads everything again, slowly
mend_entries.py  writes queue entries again
mend_units.py    links what is sound of the timer log
pass_lost.py     takes off the count what cannot be read
"""
