-- a row is: messages of one kind that were appended within an hour, as far as the log still has
--   them
-- hour timestamp: when the hour begins
-- hour_ms bigint: the same, ms
-- kind string: put, fired, moved (rolled or cleaned), cancelled or other
-- messages bigint: how many
-- bytes bigint: of them in the commit log
SELECT 3600000 * hour AS hour_ms, name AS kind, sum(messages) AS messages, sum(bytes) AS bytes
FROM (
  SELECT hour, messages, bytes, CASE WHEN kind = 0 OR kind = 3 THEN 'put' WHEN kind = 1 THEN 'cancelled'
    WHEN kind = 2 THEN 'fired' WHEN kind = 4 THEN 'moved' ELSE 'other' END AS name
  FROM grown
) AS named GROUP BY hour, name
