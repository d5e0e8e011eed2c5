"""What one open store consists of: its files, arrays, locks, its indexes.

engine.py        the files, arrays, locks of one open store
sizes.py         which sizes a store is opened with
counter_file.py  the counters of each topic
first_pages.py   the pages that opening needs first
key_files.py     keeps the key index up with the queues
rebuild.py       places that are damaged; indexes made anew from the commit log
holds.py         what stays while somebody reads it
"""
