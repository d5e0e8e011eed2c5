-- looks at: due, stores, machine
-- measures: seconds since the first pending timer of a closed store was due
-- means: The program that had the store open was stopped, and no other one was started.
-- do: Start it.
-- warn: 3600
-- fail: 86400
-- says: {checked:timer} overdue in a store that nobody has open; the first was due at
--   {first_ms:minute} UTC, {ago_ms:span} ago.
-- none: Nobody said in_use, or the store is open or a copy, or nothing in it is overdue.
SELECT store, (ago_ms - 60000) / 1000 AS value, timers AS checked, first_ms, ago_ms
FROM (
  SELECT due.store, min(due.minute_ms) AS first_ms, sum(due.timers) AS timers,
    machine.now_ms - min(due.minute_ms) AS ago_ms
  FROM due JOIN stores ON stores.store = due.store CROSS JOIN machine
  WHERE machine.in_use AND NOT stores.was_open AND NOT stores.is_copy
    AND due.minute_ms + 60000 <= machine.now_ms
  GROUP BY due.store, machine.now_ms
) AS overdue
