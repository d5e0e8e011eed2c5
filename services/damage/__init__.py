"""What an open store does about damage: it looks for it, names it, passes it by.

Nothing is mended in place: the next opening makes an index that is damaged anew.

scrub.py    reads everything again, slowly; finds what a damaged unit hides
pass_by.py  takes lost messages off the count, leaves damaged queue entries
"""
