-- of: timers
-- counts: a fired message
-- says: It was stored at its due time or later, or after the delay of its level.
-- means: A timer was fired too early.
--
-- The reader asks this of what has a due time; here of what was in a delay level.
SELECT 'commitlog' AS file, message AS place,
  'it was delivered before its level was over' AS reason, FALSE AS is_torn
FROM copies WHERE is_without_due AND due_ms < source_due_ms
