"""Stores that nobody has open, or somebody else: rows of them, whether all is right, what is left.

    read.py         a table as one Arrow table: `timerstore.read`
    export.py       what is pending, fired, or all messages, as Parquet, Arrow or JSON
    verify.py       every byte: the rules of `validation/` about bytes, told shortly
    salvage.py      a store out of what is left of one
    leftovers.py    its files, copied as far as they can be read
    lostranges.py   what is lost of its log, covered with fillers

A room imports `core/`, never the store.
"""
