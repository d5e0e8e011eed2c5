SELECT count(CASE WHEN kind = 0 AND rolls = 0 THEN 1 END) AS timers,
  count(CASE WHEN is_fired AND NOT is_filler THEN 1 END) AS fired,
  count(CASE WHEN kind <= 1 AND rolls > 0 THEN 1 END) AS rolls,
  count(CASE WHEN kind = 1 AND rolls = 0 THEN 1 END) AS deletes,
  count(CASE WHEN is_pending THEN 1 END) AS pending,
  count(CASE WHEN is_pending AND kind = 3 THEN 1 END) AS in_levels
FROM fates
