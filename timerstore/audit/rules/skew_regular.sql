-- looks at: due, stores
-- measures: how many deviations a minute of the hour lies above the others of its topic, in half of
--   the next 24 hours
-- means: Timers come in bursts each hour, which may be too small to stand out one by one.
-- do: Spread the due times by some minutes: see docs/howto/capacity.md.
-- warn: 20
-- least: 1000
-- says: At minute {minute} of most of the next 24 hours {timers:timer} or more of topic {topic} are
--   due; an average minute has {mean:,.1f}.
-- none: No topic has {least:timer} or more in one minute of these hours.
-- place: minute {minute} of topic {topic}: {timers:timer}
--
-- An hour ahead the 24 hours begin. Of each minute of the hour the 13th largest of its 24 counts is
-- what at least half of these hours have. A deviation is no smaller than chance makes, nor than 1.
WITH ranked AS (
  SELECT due.store, due.topic, due.minute_ms, due.timers,
    CAST((due.minute_ms - due.hour_ms) / 60000 AS BIGINT) AS minute,
    row_number() OVER (PARTITION BY due.store, due.topic, due.minute_ms - due.hour_ms
      ORDER BY due.timers DESC, due.minute_ms) AS nth,
    sum(due.timers) OVER (PARTITION BY due.store, due.topic, due.minute_ms - due.hour_ms) AS whole
  FROM due JOIN stores ON stores.store = due.store
  WHERE due.minute_ms >= floor(stores.at_ms / 60000) * 60000 + 3600000
    AND due.minute_ms < floor(stores.at_ms / 60000) * 60000 + 90000000
), middles AS (
  SELECT store, topic, minute_ms, minute, timers, whole,
    sum(timers) OVER (PARTITION BY store, topic) / 60 AS mean
  FROM ranked WHERE nth = 13
)
SELECT store, (timers - mean) / greatest(1, sqrt(mean)) AS value, whole AS checked, topic, minute,
  timers, mean, 'due' AS file, minute_ms AS offset
FROM middles
