-- looks at: due, machine
-- measures: the busiest hour, as a part of what the machine fires in an hour
-- means: Some timers of that hour will be late.
-- do: Move a topic to a store on another machine before that hour comes.
-- warn: 0.3
-- fail: 0.8
-- says: The busiest hour, {hour_ms:minute} UTC, has {timers:timer}: {value:share} of what the
--   machine fires in it.
-- none: No timer waits, or fire_rate was not given.
-- place: {hour_ms:minute}: {top_timers:timer} of topic {topic}
SELECT store, timers / (fire_rate_per_s * 3600000 / 1000) AS value, checked, hour_ms, timers, topic,
  top_timers, 'due' AS file, hour_ms AS offset
FROM (
  SELECT store, hour_ms, topic, top_timers,
    sum(top_timers) OVER (PARTITION BY store, hour_ms) AS timers,
    count(*) OVER (PARTITION BY store) AS checked,
    row_number() OVER (PARTITION BY store, hour_ms ORDER BY top_timers DESC, topic) AS nth
  FROM (
    SELECT store, hour_ms, topic, sum(timers) AS top_timers
    FROM due GROUP BY store, hour_ms, topic
  ) AS topics
) AS hours CROSS JOIN machine
WHERE nth = 1 AND fire_rate_per_s IS NOT NULL
