-- looks at: history
-- measures: how many times more, or fewer, timers wait than in the run that was set as the baseline
-- means: The number of timers has left what somebody said was right.
-- do: Ask whoever puts these timers whether that was intended; if so, set baseline to a later run.
-- warn: 2
-- fail: 10
-- least: 1000
-- says: {pending:timer} wait; in the baseline it was {before:,}.
-- none: No baseline was set, or fewer than {least:timer}.
SELECT today.store,
  greatest(greatest(1, today.pending) / greatest(1, past.pending),
    greatest(1, past.pending) / greatest(1, today.pending)) AS value,
  greatest(today.pending, past.pending) AS checked, today.pending, past.pending AS before
FROM history AS today JOIN history AS past ON past.store = today.store AND past.ago = -1
WHERE today.ago = 0
