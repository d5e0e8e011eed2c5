-- of: timers
-- looks at: alike of fates WHERE is_fired
-- counts: a fired message
-- says: There is no delete of its timer before it.
-- means: A timer was fired after it was cancelled.
--
-- Our own copies against our own deletes: a broker's may miss its target. What was sent back has the
-- key of its first message, and is not meant.
SELECT 'commitlog' AS file, fates.message AS place,
  'it was fired after its delete' AS reason, FALSE AS is_torn
FROM fates LEFT JOIN copies
  ON copies.message = fates.message
WHERE fates.is_fired AND fates.is_ours AND fates.origin >= 0 AND fates.deleted_at < fates.message
  AND (copies.source IS NULL OR copies.source_kind <> 3 OR copies.is_source_first)
