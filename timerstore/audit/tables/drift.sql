-- looks at: compared, profiles
--
-- A row is a profile of a store, with its population stability index against earlier runs: the
-- nearer of the two kinds counts. What two samples of one distribution differ by on average is
-- taken off, so that few timers make no drift.
WITH pairs AS (
  SELECT today.store, today.profile, compared.against, CAST(max(today.timers) AS DOUBLE) AS a,
    CAST(sum(past.timers) AS DOUBLE) AS b, count(*) AS runs
  FROM profiles AS today
  JOIN compared ON compared.store = today.store
  JOIN profiles AS past ON past.store = today.store AND past.ago = compared.ago
    AND past.profile = today.profile AND past.bin = today.bin
  WHERE today.ago = 0
  GROUP BY today.store, today.profile, compared.against, today.bin
), used AS (
  SELECT store, profile, against, a, b, runs,
    sum(a) OVER (PARTITION BY store, profile, against) AS whole_a,
    sum(b) OVER (PARTITION BY store, profile, against) AS whole_b,
    count(*) OVER (PARTITION BY store, profile, against) AS bins
  FROM pairs WHERE a > 0 OR b > 0
), shares AS (
  SELECT store, profile, against, runs, bins, whole_a, whole_b,
    (a + 0.5) / (whole_a + 0.5 * bins) AS p, (b + 0.5) / (whole_b + 0.5 * bins) AS q
  FROM used WHERE whole_a > 0 AND whole_b > 0
), indexes AS (
  SELECT store, profile, against, max(runs) AS runs, max(whole_a) AS timers,
    greatest(0, sum((p - q) * ln(p / q))
      - (max(bins) - 1) * (1 / max(whole_a) + 1 / max(whole_b))) AS value
  FROM shares GROUP BY store, profile, against
)
SELECT store, profile, value, runs, CAST(timers AS BIGINT) AS timers FROM (
  SELECT store, profile, value, runs, timers,
    row_number() OVER (PARTITION BY store, profile ORDER BY value, against) AS nth
  FROM indexes
) AS ranked
WHERE nth = 1
