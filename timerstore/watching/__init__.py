"""What an operator sees of a store.

health.py    is it healthy, since when not, what to do
"""
