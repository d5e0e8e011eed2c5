"""Stores that nobody has open, or somebody else: rows of them, whether all is right, what is left.

    read.py       a table as one Arrow table: `timerstore.read`
    export.py     what is pending, fired, or all messages, as Parquet, Arrow or JSON
    verify.py     every byte: the rules of `validation/` about bytes, told shortly
    salvage.py    a store out of what is left of one
    lostranges.py its files, copied as far as they can be read; what is lost of its log

A room imports `core/`, never the store.
"""
