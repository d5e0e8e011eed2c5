"""The store as a program sees it: which room makes each call of `watching/calls.py`.

    store.py       the public class
    readonly.py    a store that is opened to look at; one in which nothing fires
    switching.py   pausing: what the switches do

What a call does stands in the room of its name; here are the calls that have none.
"""
