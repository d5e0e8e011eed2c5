"""The steps that move a timer from put to fired.

In the order of a timer's way: `enqueue_get` → ring A → `enqueue_put` → timer log, wheel →
`dequeue_get` → near wheel, ring C → `dequeue_put`; beside them `deliver_levels` for the 18 levels.
`steps` runs them, a thread each (`runner`), on the wall clock or a manual one; `world` is what
they see, `state` what each of them alone writes, `needs` what they ask Python for.

Opening: `opening`, `recovery`, `recover_*`, `rebuild`, `level_due_times`, `sizes`. What is durable:
`capture`, `flush`, `group_commit`, `level_file`. What goes: `retention`. Damage: `damage`,
`mend_*`, `pass_lost`, `scrub`. Looking from outside: `instant`, `slot_units`,
`level_timers`, `read_pending`, `timer_parts`, `metrics`. Calls: `put_batch`, `cancel_ahead`,
`by_id`, `first_puts`, `waking`; `broker_deletes` for a handover.
"""
