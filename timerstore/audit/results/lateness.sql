-- a row is: how many timers a topic fired within an hour with this lateness; rows can be added over
--   hours, topics and stores
-- topic string: the topic
-- hour timestamp: when the hour begins in which it fired
-- hour_ms bigint: the same, ms
-- late_ms bigint: exact up to 1,023 ms, above rounded down by less than 0.2 %
-- fired bigint: how many
SELECT coalesce(topics.name, '') AS topic, 3600000 * hour AS hour_ms, late_ms, sum(fired) AS fired
FROM late LEFT JOIN topics ON topics.topic = late.topic
GROUP BY coalesce(topics.name, ''), hour, late_ms
