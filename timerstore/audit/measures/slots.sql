-- A row is a slot ahead that holds units, or to which due times say that some belong: what it holds,
-- and what firing its live units reads.
WITH belonging AS (
  SELECT loads.belongs AS slot, count(*) AS expected
  FROM loads CROSS JOIN sources
  WHERE NOT is_late AND belongs >= sources.read_slot GROUP BY loads.belongs
), weighed AS (
  SELECT slot, count(*) AS live, count(CASE WHEN is_late THEN 1 END) AS late,
    sum(size) AS bytes,
    sum(greatest(last_page - greatest(first_page, coalesce(page_before + 1, first_page)) + 1, 0))
      AS pages
  FROM (
    SELECT *, lag(last_page) OVER (PARTITION BY slot ORDER BY message) AS page_before
    FROM loads
  ) AS paged GROUP BY slot
), topics AS (
  SELECT slot, topic_hash, units AS top_units,
    row_number() OVER (PARTITION BY slot ORDER BY units DESC, topic_hash DESC) AS nth
  FROM (
    SELECT slot, topic_hash, count(*) AS units FROM loads GROUP BY slot, topic_hash
  ) AS counted
)
SELECT coalesce(held.slot, belonging.slot) AS slot, coalesce(slots.ring_index, -1) AS ring_index,
  coalesce(held.units, 0) AS units, coalesce(deletes, 0) AS deletes,
  coalesce(superseded, 0) AS superseded, greatest(coalesce(rolls, 0), 0) AS rolls,
  coalesce(late, 0) AS late, coalesce(live, 0) AS live, coalesce(expected, 0) AS expected,
  coalesce(depth, 0) AS depth, coalesce(bytes, 0) AS bytes, coalesce(pages, 0) AS pages,
  coalesce(topic_hash, 0) AS top_hash, coalesce(top_units, 0) AS top_units,
  greatest(coalesce(fires, 0), 0) AS fires
FROM held
FULL JOIN belonging ON belonging.slot = held.slot
LEFT JOIN slots ON slots.slot = coalesce(held.slot, belonging.slot)
LEFT JOIN weighed ON weighed.slot = held.slot
LEFT JOIN topics ON topics.slot = held.slot AND topics.nth = 1
