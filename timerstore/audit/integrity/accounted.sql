-- counts: fates WHERE kind = 0
SELECT 'commitlog' AS file, message AS place,
  'its slot has passed, but it was neither fired, rolled nor cancelled' AS reason,
  FALSE AS is_torn
FROM fates CROSS JOIN sources
WHERE kind = 0 AND copies = 0 AND NOT is_waiting AND NOT is_deleted
  AND message > sources.salvaged_to
