"""What each call of a store does, on the parts that `core/` has.

    putting    from arguments to messages in the log
    pending    looking at what is pending, cancelling it, moving it to another time
    consuming  handing out what has fallen due, acknowledging, sending back

None of them knows the store (`store/`), which says who makes which call.
"""
