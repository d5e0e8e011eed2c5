-- of: timers
-- looks at: alike of fates WHERE kind = 0
-- counts: a timer's message
-- says: It is pending, was fired, was rolled, or is cancelled.
-- means: The timer was lost: its slot passed, but it was neither fired, rolled nor cancelled.
SELECT 'commitlog' AS file, message AS place,
  'its slot has passed, but it was neither fired, rolled nor cancelled' AS reason,
  FALSE AS is_torn
FROM fates CROSS JOIN sources
WHERE kind = 0 AND copies = 0 AND NOT is_waiting AND NOT is_deleted
  AND message > sources.salvaged_to
