"""The steps that move a timer from put to fired.

In the order of a timer's way, with what stands beside them:

    enqueue_get.py     reads the timer topic's queue, into ring A
    enqueue_put.py     links a unit for each timer into its slot
    dequeue_get.py     takes what is due out of the wheel, into ring C
    aside.py           the slots that had ended when the store was opened
    dequeue_put.py     appends what was taken, fired or rolled
    deliver_levels.py  appends what delay levels hold, when its time has come
    levels.py          the arrays of the levels
    copying.py         what these two do alike
    deletes.py         what a cancel leaves in the log
    cancel_ahead.py    cancelling what lies ahead, in one kernel

What runs them:

    steps.py       the kernel that is a service's thread
    runner.py      their threads
    clock.py       the wall clock, or one that a test moves
    world.py       all shared arrays of a store
    state.py       what each service alone writes
    stages.py      what each part of their work takes
    needs.py       what they ask Python for
    provide.py     answers them
    engine.py      the files, arrays, locks of one open store
    background.py  threads whose end is never silent

What is durable, what goes:

    flush.py         makes durable what was written
    group_commit.py  many wait for one fsync
    capture.py       a checkpoint, captured in one kernel
    level_file.py    `config/delayOffset.json`
    counter_file.py  the counters of each topic
    key_files.py     keeps the key index up with the queues
    ahead_file.py    … and what is pending, as of a clean close
    retention.py     removes the segments that nobody needs again
    reach.py         up to where only pending timers keep the log
    cleaning.py      moves those out of the oldest segments
    pass_units.py    … the units that it reads
    floor.py         which units are superseded by that
    cut_chains.py    takes them out of their slots, for a broker
    reached.py       goes through slots as a broker does: each timer once

Opening:

    opening.py              tried again, without what is damaged
    sizes.py                which sizes a store is opened with
    recovery.py             from what is on disk to a store that can be served
    findings.py             … what it found
    recover_log.py          … the scan of the commit log
    recover_index.py        … the timer index, emptied, cut, or a broker's
    recover_pending.py      … how many are pending
    recover_files.py        … files that were cut or lost
    recover_queues.py       … where the queues end
    recover_queue_files.py  … queue files that are gone
    recover_levels.py       … from where each level goes on
    recover_deletes.py      … the cancelled set
    recover_counts.py       … the counters of topics
    recover_copies.py       … sources that are done, and still ahead
    recover_removed.py      … what a broker's clean-up has removed
    recover_damage.py       … where the log can be read again
    recover_torn.py         … what was torn at its end
    level_due_times.py      when a broker's level messages are due
    rebuild.py              indexes made anew from the commit log

Damage in an open store:

    damage.py        its places, each named once
    scrub.py         reads everything again, slowly
    mend_entries.py  writes queue entries again
    mend_units.py    links what is sound of the timer log
    pass_lost.py     takes off the count what cannot be read

Looking from outside:

    instant.py       one instant: cursors, with what judges the timers
    places.py        where timers stood then
    slot_units.py    units of slots, mapped on the way
    level_timers.py  what waits in the delay levels
    pending_rows.py  pending timers as rows
    read_pending.py  messages of pending timers, in columns
    timer_parts.py   where the parts of their messages lie
    metrics.py       statistics for Prometheus

What calls do in one kernel:

    key_search.py      looks for messages by their key
    put_batch.py       many puts
    by_id.py           `get`, `cancel` or `reschedule` of one timer
    find_id.py         messages that name a timer, in the order of a queue
    first_puts.py      the first put of a timer, by what its id says
    waking.py          whether enqueue-get must be woken
    broker_deletes.py  deletes beside their timers, for a handover
"""
