"""What a broker needs of a store that is handed over to it.

broker_damage.py   what a broker would not read past: refused before anything is changed
new_index.py       a timer log and a wheel of what waits alone, read as a broker reads them
"""
