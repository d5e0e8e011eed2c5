-- looks at: lateness, stores
-- measures: seconds by which one in a hundred of a topic's timers fired too late, or more, within
--   the last day
-- means: The machine did not keep up, or the program did not run when they were due.
-- do: See timerstore top while it runs, and timerstore health.
-- warn: 10
-- fail: 300
-- least: 100
-- says: Of {checked:timer} of topic {topic} that fired within a day, one in a hundred was late by
--   {late_ms:span} or more; the last by {worst_ms:span}.
-- none: No topic fired {least:timer} or more within a day.
SELECT store, late_ms / 1000 AS value, fired AS checked, topic, late_ms, worst_ms
FROM (
  SELECT store, topic, fired, min(CASE WHEN 100 * up_to >= 99 * fired THEN late_ms END) AS late_ms,
    max(late_ms) AS worst_ms
  FROM (
    SELECT lateness.store, lateness.topic, lateness.late_ms,
      sum(lateness.fired) OVER (PARTITION BY lateness.store, lateness.topic) AS fired,
      sum(lateness.fired) OVER (
        PARTITION BY lateness.store, lateness.topic ORDER BY lateness.late_ms) AS up_to
    FROM lateness JOIN stores ON stores.store = lateness.store
    WHERE lateness.hour_ms > stores.at_ms - 86400000
  ) AS sums
  GROUP BY store, topic, fired
) AS topics
