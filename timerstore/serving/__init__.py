"""Serving: one process has the store open, others of the same machine use it through a socket.

    door.py      the owner's end: who may come in, a thread for each connection
    server.py    serving a store to clients; letting the shell ask it
    session.py   what one client holds: batches, listings; it comes back when the client has gone
    answers.py   what can be asked, by name
    tail.py      whether a call whose answer was lost was made: the log's tail tells
    client.py    the other end: a store's calls
    batch.py     a batch that was pulled there
    consumer.py  a consumer over a client
    link.py      a client's connections: found, lost, found again
    columns.py   columns behind a frame's header
    typed.py     values as their types say, from JSON
    shared.py    a client that becomes the owner where nobody is
    takeover.py  which one is becoming it

A client of the store, and above it: it asks the store's public calls. `docs/processes.md` has the
rules.
"""
