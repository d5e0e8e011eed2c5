-- A row is a unit of such a slot; `run` counts the places up to here where its chain breaks.
SELECT *, sum(CASE WHEN is_broken THEN 1 ELSE 0 END) OVER (
  PARTITION BY slot ORDER BY unit ROWS UNBOUNDED PRECEDING) AS run
FROM (
  SELECT slot, unit, prev, is_delete, is_superseded, is_ahead,
    is_ahead AND CASE WHEN before IS NULL THEN prev >= units_start ELSE prev <> before END AS is_broken
  FROM (
    SELECT units.slot, unit, prev, is_delete, is_superseded, units.slot >= read_slot AS is_ahead, units_start,
      lag(unit) OVER (PARTITION BY units.slot ORDER BY unit) AS before
    FROM units JOIN odd_slots ON odd_slots.slot = units.slot CROSS JOIN sources
  ) AS ordered
) AS judged
