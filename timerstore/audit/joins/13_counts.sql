SELECT coalesce(sum(CASE WHEN kind = 0 AND rolls = 0 THEN alike END), 0) AS timers,
  coalesce(sum(CASE WHEN is_fired AND NOT is_filler THEN alike END), 0) AS fired,
  coalesce(sum(CASE WHEN kind <= 1 AND rolls > 0 THEN alike END), 0) AS rolls,
  coalesce(sum(CASE WHEN kind = 1 AND rolls = 0 THEN alike END), 0) AS deletes,
  coalesce(sum(CASE WHEN is_pending THEN alike END), 0) AS pending,
  coalesce(sum(CASE WHEN is_pending AND kind = 3 THEN alike END), 0) AS in_levels
FROM fates
