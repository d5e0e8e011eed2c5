"""What both ends of a store's socket need, with the shell's end; it loads no kernel.

The owner listens at the Unix socket `control.sock` in the store's folder (`serving/door.py`).
Frames are spoken there, and as much of HTTP as
`curl --unix-socket timers/control.sock http://x/health` needs.

socketfile.py the socket in the store's folder
wire.py       frames, with how values, or errors, are written in JSON
asking.py     the shell's end: finds the owner, asks, raises its errors
"""
