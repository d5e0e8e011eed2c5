-- A row is a unit of a slot ahead. A chain is whole if each unit points to the one before it in its slot,
-- and the first one to none, or to one that retention removed.
SELECT slot, unit, prev, is_delete, is_roll, is_superseded,
  CASE WHEN before IS NULL THEN prev >= units_start ELSE prev <> before END AS is_broken
FROM (
  SELECT units.slot, unit, prev, is_delete, is_roll, is_superseded, sources.units_start,
    lag(unit) OVER (PARTITION BY units.slot ORDER BY unit) AS before
  FROM units CROSS JOIN sources
  WHERE units.slot >= sources.read_slot
) AS ordered
