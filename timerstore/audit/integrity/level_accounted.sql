-- of: timers
-- looks at: alike of fates WHERE kind = 3
-- counts: a message of a delay level
-- says: It is pending, was delivered, or is cancelled.
-- means: The message was lost: its level passed it, but it was neither delivered nor cancelled.
SELECT 'commitlog' AS file, message AS place,
  'its level has passed it, but it was neither delivered nor cancelled' AS reason,
  FALSE AS is_torn
FROM fates CROSS JOIN sources
WHERE kind = 3 AND copies = 0 AND NOT (is_first AND is_deleted) AND NOT is_waiting
  AND message > sources.salvaged_to
