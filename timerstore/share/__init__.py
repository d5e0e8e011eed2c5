"""Sharing: one process has the store open, others of the same machine use it through a socket.

    door.py           the owner's end: who may come in, a thread for each connection
    http_get.py       what `curl` may ask there
    opening.py        a directory is opened, as the kind of store that was asked for
    server.py         serving a store to clients; letting the shell ask it
    session.py        what one client holds: batches, listings; it comes back when the client has
                      gone
    answers.py        what can be asked, by name
    answered_before.py  whether a call whose answer was lost was made: the log's tail tells
    client.py         the other end: a store's calls
    client_calls.py   who makes them, by asking
    clientrun.py      what was pulled there
    clientsource.py   what a consumer reads through a client
    link.py           a client's connections: found, lost, found again
    framecolumns.py   columns behind a frame's header
    shared.py         a client that becomes the owner if nobody is
    election.py       which one is becoming it

What both ends need, with the shell's end; it loads no kernel:

    socketfile.py     the socket in the store's folder
    wire.py           frames, with how values, or errors, are written in JSON
    asking.py         the shell's end: finds the owner, asks, raises its errors

The owner listens at the Unix socket `control.sock` in the store's folder. Frames are spoken there,
and as much of HTTP as `curl --unix-socket timers/control.sock http://x/health` needs.

A client of the store, and above it: it asks the store's public calls. `docs/processes.md` has the
rules.
"""
