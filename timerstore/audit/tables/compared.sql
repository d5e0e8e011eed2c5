-- looks at: history
--
-- A row is an earlier run with which this one is compared: the last seven, and those of the same day
-- of the week, four at most. A week repeats, so what is as on the same day of an earlier week is no
-- drift. Fewer than two earlier runs are too few.
SELECT store, against, ago FROM (
  SELECT past.store, 'week' AS against, past.ago,
    row_number() OVER (PARTITION BY past.store ORDER BY past.ago) AS nth
  FROM history AS past JOIN history AS today ON today.store = past.store AND today.ago = 0
  WHERE past.ago > 0 AND past.runs >= 2 AND past.day <> today.day
    AND (today.day - past.day) % 7 = 0
) AS weekly
WHERE nth <= 4
UNION ALL
SELECT store, 'last' AS against, ago FROM history WHERE ago BETWEEN 1 AND 7 AND runs >= 2
