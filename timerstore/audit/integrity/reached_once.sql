-- of: timers
-- looks at: alike of fates WHERE kind = 0 AND waiting_units > 0
-- counts: a timer that waits in a slot
-- says: If the store was handed over, its message is not superseded and was not copied.
-- means: A broker fires the timer twice.
SELECT 'commitlog' AS file, message AS place,
  'a broker would read both it and its copy' AS reason, FALSE AS is_torn
FROM fates CROSS JOIN sources
WHERE sources.is_handed_over AND kind = 0 AND waiting_units > 0
  AND (copies > 0 OR message < sources.checkpoint_floor)
