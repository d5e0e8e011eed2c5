-- A row is a slot that has units: what they are, and whether a slot ahead has a place where its chain
-- breaks. A chain is whole if each unit points to the one before it in its slot, and the first one to
-- none, or to one that retention removed.
SELECT slot, count(*) AS units, count(CASE WHEN is_delete THEN 1 END) AS deletes,
  count(CASE WHEN is_superseded AND NOT is_delete THEN 1 END) AS superseded,
  sum(CASE WHEN is_superseded OR is_roll THEN 0 ELSE step END) AS fires,
  sum(CASE WHEN is_superseded OR NOT is_roll THEN 0 ELSE step END) AS rolls,
  min(unit) AS first_unit, max(unit) AS last_unit, min(CASE WHEN before IS NULL THEN prev END) AS first_prev,
  slot >= min(read_slot) AND count(CASE WHEN prev <> before OR before IS NULL AND prev >= units_start
    THEN 1 END) > 0 AS is_broken
FROM (
  SELECT slot, unit, prev, is_delete, is_superseded, is_roll, CASE WHEN is_delete THEN -1 ELSE 1 END AS step,
    read_slot, units_start, lag(unit) OVER (PARTITION BY slot ORDER BY unit) AS before
  FROM units CROSS JOIN sources
) AS ordered GROUP BY slot
