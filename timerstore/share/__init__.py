"""Sharing: one process has the store open, others of the same machine use it through a socket.

    http_get.py     what `curl` may ask there
    opening.py      a directory is opened, as the kind of store that was asked for
    server.py       the owner's end: serving a store, who may come in, a thread for each connection
    session.py      what one client holds: batches, listings; it comes back when the client has
                    gone
    answers.py      what can be asked, by name; whether a call whose answer was lost was made
    client.py       the other end: a store's calls, made by asking
    clientrun.py    what was pulled there
    clientsource.py what a consumer reads through a client
    link.py         a client's connections: found, lost, found again
    framecolumns.py columns behind a frame's header
    shared.py       a client that becomes the owner if nobody is

What both ends need, with the shell's end; it loads no kernel:

    wire.py   frames, with how values, or errors, are written in JSON; the socket; the shell's end,
              which finds the owner, asks, raises its errors

The owner listens at the Unix socket `control.sock` in the store's folder. Frames are spoken there,
and as much of HTTP as `curl --unix-socket timers/control.sock http://x/health` needs.

A client of the store, and above it: it asks the store's public calls. `docs/processes.md` has the
rules.
"""
