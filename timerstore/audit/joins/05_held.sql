-- A row is a slot ahead: what it holds, and of its chain where that ends and what it counts.
SELECT slot_sums.slot, units, deletes, superseded, fires, rolls,
  CASE WHEN odd_slots.slot IS NULL THEN units ELSE coalesce(walked.depth, 0) END AS depth,
  CASE WHEN odd_slots.slot IS NULL THEN units - 2 * deletes ELSE coalesce(walked.net, 0) END AS net,
  CASE WHEN odd_slots.slot IS NULL THEN first_unit ELSE walked.end_unit END AS end_unit,
  CASE WHEN odd_slots.slot IS NULL THEN first_prev ELSE walked.end_prev END AS end_prev
FROM slot_sums CROSS JOIN sources
LEFT JOIN odd_slots ON odd_slots.slot = slot_sums.slot
LEFT JOIN (
  SELECT chains.slot, count(*) AS depth, sum(CASE WHEN is_delete THEN -1 ELSE 1 END) AS net,
    min(unit) AS end_unit, min_by(prev, unit) AS end_prev
  FROM chains JOIN reach ON reach.slot = chains.slot AND reach.run = chains.run
  WHERE unit <= top GROUP BY chains.slot
) AS walked ON walked.slot = slot_sums.slot
WHERE slot_sums.slot >= sources.read_slot
