-- looks at: due, stores
-- measures: seconds since the first pending timer was due
-- means: The store does not fire.
-- do: Check whether the program runs, whether firing is paused, and whether the disk has room: see
--   timerstore health.
-- warn: 60
-- fail: 3600
-- says: {checked:timer} overdue; the first was due at {first_ms:minute} UTC, {ago_ms:span} ago.
-- none: Nothing is overdue.
SELECT store, (at_ms - first_ms - 60000) / 1000 AS value, timers AS checked, first_ms,
  at_ms - first_ms AS ago_ms
FROM (
  SELECT due.store, stores.at_ms, min(due.minute_ms) AS first_ms, sum(due.timers) AS timers
  FROM due JOIN stores ON stores.store = due.store
  WHERE due.minute_ms + 60000 <= stores.at_ms
  GROUP BY due.store, stores.at_ms
) AS overdue
