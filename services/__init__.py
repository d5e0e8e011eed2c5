"""The steps that move a timer from put to fired, with all that an open store's threads do.

From the bottom up; a room imports only from those that stand before it:

    world     what all share: arrays, the clock, who writes what
    pipeline  a timer's way: enqueue-get, enqueue-put, dequeue-get, dequeue-put, delay levels
    engine    the files, arrays, locks of one open store
    looking   what is pending, at one instant
    calls     what calls do in one kernel
    damage    what an open store does about it
    durable   flush, group commit, checkpoints
    running   the kernel that is a service's thread, their threads, what Python does for them
    opening   from what is on disk to a store that can be served
    cleaning  what goes: copies, retention
    broker    what a broker needs of a store that is handed over
"""
