-- looks at: compared, history
-- measures: how many times more, or fewer, timers wait than in the last runs
-- means: Something puts more timers than before, or fewer.
-- do: Look in the report at what changed, and ask whoever puts these timers whether that was
--   intended.
-- warn: 2
-- fail: 10
-- least: 1000
-- says: {pending:timer} wait; in earlier runs it was {before:,.0f}.
-- none: Too few earlier runs to compare with, or fewer than {least:timer}.
WITH past AS (
  SELECT compared.store, compared.against, greatest(1, median(history.pending)) AS before
  FROM compared JOIN history ON history.store = compared.store AND history.ago = compared.ago
  GROUP BY compared.store, compared.against
), ratios AS (
  SELECT today.store, today.pending, past.before, past.against,
    greatest(greatest(1, today.pending) / past.before, past.before / greatest(1, today.pending))
      AS value
  FROM history AS today JOIN past ON past.store = today.store
  WHERE today.ago = 0
)
SELECT store, value, CAST(greatest(pending, before) AS BIGINT) AS checked, pending, before
FROM (
  SELECT store, value, pending, before,
    row_number() OVER (PARTITION BY store ORDER BY value, against) AS nth
  FROM ratios
) AS ranked
WHERE nth = 1
