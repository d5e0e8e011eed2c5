-- looks at: history
-- measures: how many times more, or fewer, timers wait in the last week than three to five weeks
--   before
-- means: The number of timers grows or shrinks slowly, too little a day for drift_pending.
-- do: Ask whoever puts these timers whether that was intended, and plan for it: see
--   docs/howto/capacity.md.
-- warn: 2
-- fail: 10
-- least: 1000
-- says: In the last week {pending:,.0f} timers waited; three to five weeks before it was
--   {before:,.0f}.
-- none: Fewer than three runs of three to five weeks before, or fewer than {least:timer}.
WITH medians AS (
  SELECT history.store,
    greatest(1, median(CASE WHEN history.day > today.day - 7 THEN history.pending END)) AS pending,
    greatest(1, median(CASE WHEN history.day <= today.day - 21 THEN history.pending END)) AS before,
    count(CASE WHEN history.day <= today.day - 21 THEN 1 END) AS runs
  FROM history JOIN history AS today ON today.store = history.store AND today.ago = 0
  WHERE history.day > today.day - 36 AND history.ago >= 0
  GROUP BY history.store
)
SELECT store, greatest(pending / before, before / pending) AS value,
  CAST(greatest(pending, before) AS BIGINT) AS checked, pending, before
FROM medians WHERE runs >= 3
