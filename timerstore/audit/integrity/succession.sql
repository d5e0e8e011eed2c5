-- of: timers
-- looks at: alike of fates WHERE source IS NOT NULL OR is_copy AND origin >= 0
-- counts: a copy
-- says: It is a copy of a message before it. A rolled copy counts one roll more and has the same
--   due time.
-- means: Nobody can tell what was fired: a timer may come again.
SELECT 'commitlog' AS file, message AS place,
  'it is a copy, and no message before it is its source' AS reason, FALSE AS is_torn
FROM fates CROSS JOIN sources
WHERE is_copy AND origin >= sources.log_start AND (source IS NULL OR origin >= message)
  AND NOT is_filler AND NOT EXISTS (
    SELECT 1 FROM lost WHERE lost.start_at <= fates.origin AND fates.origin < lost.stop_at)
UNION ALL
SELECT 'commitlog', message,
  'its roll count or due time does not fit the message of which it is a copy', FALSE
FROM copies
WHERE NOT is_filler AND NOT is_source_filler AND (
  source_kind <> 3 AND rolls <> source_rolls + CASE WHEN kind <= 1 THEN 1 ELSE 0 END
  OR kind <= 1 AND due_ms <> source_due_ms)
