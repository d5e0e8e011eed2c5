SELECT CAST(floor(due_ms / 60000) AS BIGINT) AS due_minute, topic, count(*) AS timers
FROM fates WHERE is_pending
GROUP BY CAST(floor(due_ms / 60000) AS BIGINT), topic
