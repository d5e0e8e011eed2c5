-- of: units
-- counts: a unit
-- says: Its slot is the one of its due time, a later one if that had passed, or a hop on its grid.
--   A broker's unit is half a window or a whole one ahead.
-- means: The timer fires late or rolls for ever, and an id does not lead to it.
--
-- A unit before its due time is sound if a copy was made, or a unit waits: a handover by a version
-- before 1.0.0 moved all but the last unit of a message to a slot that had passed. The reader asks the rest of this rule.
SELECT 'timerlog' AS file, units.unit AS place,
  'its slot is before its due time, and nothing was copied from its message' AS reason,
  sources.is_wheel_torn AS is_torn
FROM odd_units AS units JOIN fates ON fates.message = units.message
CROSS JOIN sources
WHERE units.is_early AND fates.copies = 0 AND fates.waiting_units = 0
