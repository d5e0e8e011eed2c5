"""What a broker needs of a store that is handed over to it.

for_broker.py  a timer log and a wheel of what waits alone; what a broker would not read past
"""
