-- of: slots
-- looks at: units of held
-- counts: a unit
-- says: At most one unit has it as its predecessor, so it is not in two chains.
-- means: A part of a chain was overtaken: timers fire twice, or not at all.
SELECT DISTINCT 'timerlog' AS file, greatest(one.unit, other.unit) AS place,
  'an earlier unit has the same predecessor' AS reason,
  greatest(one.unit, other.unit) >= sources.linked_again AS is_torn
FROM chains AS one JOIN units AS other
  ON other.prev = one.prev AND other.unit <> one.unit
CROSS JOIN sources
WHERE one.is_broken AND one.prev <> -1 AND other.slot >= sources.read_slot
