-- A row is the messages of one kind that were appended within an hour.
SELECT 3600000 * hour AS hour_ms, name AS kind, sum(messages) AS messages, sum(bytes) AS bytes
FROM (
  SELECT hour, messages, bytes, CASE WHEN kind = 0 OR kind = 3 THEN 'put' WHEN kind = 1 THEN 'cancelled'
    WHEN kind = 2 THEN 'fired' WHEN kind = 4 THEN 'moved' ELSE 'other' END AS name
  FROM grown
) AS named GROUP BY hour, name
