-- a row is: a slot that is not passed, and has units or should have some
-- slot bigint: its number: time_ms / precision
-- index bigint: its place in the ring; null if the wheel does not have the slot
-- time timestamp: when it begins
-- time_ms bigint: the same, ms
-- units bigint: of the slot in the timer log, dead ones too
-- live bigint: of them neither deletes nor superseded
-- fires bigint: timers that are due in it, those that are cancelled left out
-- deletes bigint: of them deletes; each has a dead unit beside it
-- superseded bigint: of them those that moved elsewhere, by cleaning or by a hop
-- rolls bigint: timers on the way to a later slot, those that are cancelled left out
-- late bigint: of the live ones: those put when their own slot was passed or claimed
-- expected bigint: live units that belong in this slot by the due times of their messages
-- depth bigint: units that the slot's chain leads to
-- bytes bigint: of the live ones' messages
-- read_bytes bigint: of the commit log's pages that firing them reads
-- top_topic string: the topic that most of the live ones have
-- top_units bigint: how many have it
WITH belonging AS (
  SELECT loads.belongs AS slot, count(*) AS expected
  FROM loads CROSS JOIN sources
  WHERE NOT is_late AND belongs >= sources.read_slot GROUP BY loads.belongs
), pages AS (
  SELECT slot, size, topic_hash, is_late, message, CAST(floor(message / 4096) AS BIGINT) AS first_page,
    CAST(floor((message + greatest(size, 1) - 1) / 4096) AS BIGINT) AS last_page
  FROM loads
), by_topic AS (
  SELECT slot, topic_hash, count(*) AS units, count(CASE WHEN is_late THEN 1 END) AS late,
    sum(size) AS bytes,
    sum(greatest(last_page - greatest(first_page, coalesce(page_before + 1, first_page)) + 1, 0))
      AS pages
  FROM (
    SELECT *, lag(last_page) OVER (PARTITION BY slot ORDER BY message) AS page_before
    FROM pages
  ) AS paged GROUP BY slot, topic_hash
), weighed AS (
  SELECT slot, topic_hash AS top_hash, units AS top_units, sum(units) OVER (PARTITION BY slot) AS live,
    sum(late) OVER (PARTITION BY slot) AS late, sum(bytes) OVER (PARTITION BY slot) AS bytes,
    sum(pages) OVER (PARTITION BY slot) AS pages,
    row_number() OVER (PARTITION BY slot ORDER BY units DESC, topic_hash DESC) AS nth
  FROM by_topic
), named AS (
  SELECT topic_hash, max(name) AS name FROM topics GROUP BY topic_hash
)
SELECT coalesce(held.slot, belonging.slot) AS slot, slots.ring_index AS index,
  sources.precision_ms * coalesce(held.slot, belonging.slot) AS time_ms,
  coalesce(held.units, 0) AS units, coalesce(live, 0) AS live,
  greatest(coalesce(fires, 0), 0) AS fires, coalesce(deletes, 0) AS deletes,
  coalesce(superseded, 0) AS superseded, greatest(coalesce(rolls, 0), 0) AS rolls,
  coalesce(weighed.late, 0) AS late, coalesce(expected, 0) AS expected, coalesce(depth, 0) AS depth,
  coalesce(weighed.bytes, 0) AS bytes, 4096 * coalesce(pages, 0) AS read_bytes,
  named.name AS top_topic, coalesce(top_units, 0) AS top_units
FROM held
FULL JOIN belonging ON belonging.slot = held.slot
CROSS JOIN sources
LEFT JOIN slots ON slots.slot = coalesce(held.slot, belonging.slot)
LEFT JOIN weighed ON weighed.slot = held.slot AND weighed.nth = 1
LEFT JOIN named ON named.topic_hash = weighed.top_hash
