-- A row is a slot ahead: what it holds, and of its chain where that ends and what it counts.
SELECT slot, count(*) AS units, count(CASE WHEN is_delete THEN 1 END) AS deletes,
  count(CASE WHEN is_superseded AND NOT is_delete THEN 1 END) AS superseded,
  sum(CASE WHEN is_superseded OR is_roll THEN 0 ELSE step END) AS fires,
  sum(CASE WHEN is_superseded OR NOT is_roll THEN 0 ELSE step END) AS rolls,
  count(CASE WHEN is_reached THEN 1 END) AS depth,
  sum(CASE WHEN is_reached THEN step ELSE 0 END) AS net,
  min(CASE WHEN is_reached THEN unit END) AS end_unit,
  min_by(prev, CASE WHEN is_reached THEN unit END) AS end_prev
FROM (
  SELECT chains.*, coalesce(chains.unit <= reach.top, FALSE) AS is_reached,
    CASE WHEN is_delete THEN -1 ELSE 1 END AS step
  FROM chains
  LEFT JOIN runs ON runs.slot = chains.slot AND runs.unit = chains.unit
  LEFT JOIN reach ON reach.slot = chains.slot AND reach.run = coalesce(runs.run, 0)
) AS stepped GROUP BY slot
