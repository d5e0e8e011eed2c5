"""The door to an open store: how a second process of the same machine asks its owner.

The owner listens at the Unix socket `control.sock` in the store's folder, HTTP with JSON as others
speak it, so that `curl --unix-socket timers/control.sock http://x/health` works as well.

door.py      the owner's end: who may come in, one thread that listens
opening.py   the door of a store, opened with it
calls.py     what can be asked, by name
handler.py   HTTP, as far as it is spoken
socketfile.py the socket in the store's folder
client.py    the other end: finds the owner, asks, raises its errors
wire.py      how values, or errors, are written in JSON
"""
