-- A row is the timers of a topic that fired within an hour with one lateness.
SELECT coalesce(topics.name, '') AS topic, 3600000 * hour AS hour_ms, late_ms, sum(fired) AS fired
FROM late LEFT JOIN topics ON topics.topic = late.topic
GROUP BY coalesce(topics.name, ''), hour, late_ms
