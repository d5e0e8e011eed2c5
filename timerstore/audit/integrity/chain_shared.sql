-- counts: chains
SELECT DISTINCT 'timerlog' AS file, greatest(one.unit, other.unit) AS place,
  'an earlier unit has the same predecessor' AS reason,
  greatest(one.unit, other.unit) >= sources.linked_again AS is_torn
FROM chains AS one JOIN chains AS other
  ON other.prev = one.prev AND other.unit <> one.unit
CROSS JOIN sources
WHERE one.is_broken AND one.prev <> -1
