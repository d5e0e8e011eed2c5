-- a row is: the pending timers of a topic that fall due within a minute
-- topic string: the topic
-- minute timestamp: when the minute begins
-- minute_ms bigint: the same, ms
-- hour_ms bigint: the begin of its hour, ms
-- day_ms bigint: the begin of its day, ms
-- timers bigint: how many
SELECT coalesce(topics.name, '') AS topic, 60000 * due_minute AS minute_ms,
  3600000 * CAST(floor(due_minute / 60) AS BIGINT) AS hour_ms,
  86400000 * CAST(floor(due_minute / 1440) AS BIGINT) AS day_ms, timers
FROM (
  SELECT CAST(floor(due_ms / 60000) AS BIGINT) AS due_minute, topic, sum(alike) AS timers
  FROM fates WHERE is_pending
  GROUP BY CAST(floor(due_ms / 60000) AS BIGINT), topic
) AS counted LEFT JOIN topics ON topics.topic = counted.topic
