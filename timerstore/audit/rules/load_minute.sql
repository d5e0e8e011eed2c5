-- looks at: due, machine
-- measures: the busiest minute, as a part of what the machine fires in a minute
-- means: Some timers of that minute will be late.
-- do: Spread the due times, or move a topic to a store of its own on another machine.
-- warn: 0.5
-- fail: 1
-- says: The busiest minute, {minute_ms:minute} UTC, has {timers:timer}: {value:share} of what the
--   machine fires in it.
-- none: No timer waits, or fire_rate was not given.
-- place: {minute_ms:minute}: {top_timers:timer} of topic {topic}
SELECT store, timers / (fire_rate_per_s * 60000 / 1000) AS value, checked, minute_ms, timers, topic,
  top_timers, 'due' AS file, minute_ms AS offset
FROM (
  SELECT store, minute_ms, topic, top_timers,
    sum(top_timers) OVER (PARTITION BY store, minute_ms) AS timers,
    count(*) OVER (PARTITION BY store) AS checked,
    row_number() OVER (PARTITION BY store, minute_ms ORDER BY top_timers DESC, topic) AS nth
  FROM (
    SELECT store, minute_ms, topic, sum(timers) AS top_timers
    FROM due GROUP BY store, minute_ms, topic
  ) AS topics
) AS minutes CROSS JOIN machine
WHERE nth = 1 AND fire_rate_per_s IS NOT NULL
