-- A row is another copy and the message of which it is one; not asked if all copies say so. Those of a
-- broker do not: a copy is one of the first message of its timer before it that waits and was not
-- copied, with the roll count that fits; else of the first one that waits in a delay level. Both are
-- queues, which messages enter and copies leave: `idle` is how often a copy met an empty one so far.
WITH nameless AS (
  SELECT messages.*, taken.source IS NOT NULL AS is_taken
  FROM odd_messages AS messages
  LEFT JOIN (SELECT DISTINCT source FROM named) AS taken
    ON taken.source = messages.message
  WHERE EXISTS (
    SELECT 1 FROM odd_messages AS any_copy WHERE any_copy.who = messages.who AND any_copy.is_copy AND any_copy.origin < 0)
), timers AS (
  SELECT message, who, rolls, kind = 1 AS is_delete, 1 AS step
  FROM nameless WHERE kind <= 1 AND NOT is_taken
  UNION ALL
  SELECT message, who, CASE WHEN kind <= 1 THEN rolls - 1 ELSE rolls END, kind = 1, -1
  FROM nameless WHERE is_copy AND origin < 0 AND NOT is_without_due
), timer_queue AS (
  SELECT *, greatest(0, max(-depth) OVER (PARTITION BY who, rolls, is_delete
    ORDER BY message ROWS UNBOUNDED PRECEDING)) AS idle
  FROM (
    SELECT *, sum(step) OVER (PARTITION BY who, rolls, is_delete
      ORDER BY message ROWS UNBOUNDED PRECEDING) AS depth
    FROM timers
  ) AS counted
), of_timers AS (
  SELECT left_queue.message AS copy, entered.message AS source
  FROM (
    SELECT *, row_number() OVER (PARTITION BY who, rolls, is_delete ORDER BY message) AS nth
    FROM (
      SELECT *, idle > coalesce(lag(idle) OVER (PARTITION BY who, rolls, is_delete
        ORDER BY message), 0) AS is_idle
      FROM timer_queue
    ) AS met WHERE step < 0 AND NOT is_idle
  ) AS left_queue
  JOIN (
    SELECT *, row_number() OVER (PARTITION BY who, rolls, is_delete ORDER BY message) AS nth
    FROM timer_queue WHERE step > 0
  ) AS entered
    ON entered.who = left_queue.who
    AND entered.rolls = left_queue.rolls AND entered.is_delete = left_queue.is_delete
    AND entered.nth = left_queue.nth
), levels AS (
  SELECT message, who, 1 AS step FROM nameless WHERE kind = 3 AND NOT is_taken
  UNION ALL
  SELECT nameless.message, nameless.who, -1
  FROM nameless
  LEFT JOIN of_timers ON of_timers.copy = nameless.message
  WHERE nameless.kind = 2 AND nameless.origin < 0 AND of_timers.copy IS NULL
), level_queue AS (
  SELECT *, greatest(0, max(-depth) OVER (PARTITION BY who
    ORDER BY message ROWS UNBOUNDED PRECEDING)) AS idle
  FROM (
    SELECT *, sum(step) OVER (PARTITION BY who
      ORDER BY message ROWS UNBOUNDED PRECEDING) AS depth
    FROM levels
  ) AS counted
), of_levels AS (
  SELECT left_queue.message AS copy, entered.message AS source
  FROM (
    SELECT *, row_number() OVER (PARTITION BY who ORDER BY message) AS nth
    FROM (
      SELECT *, idle > coalesce(lag(idle) OVER (PARTITION BY who ORDER BY message), 0)
        AS is_idle
      FROM level_queue
    ) AS met WHERE step < 0 AND NOT is_idle
  ) AS left_queue
  JOIN (
    SELECT *, row_number() OVER (PARTITION BY who ORDER BY message) AS nth
    FROM level_queue WHERE step > 0
  ) AS entered
    ON entered.who = left_queue.who
    AND entered.nth = left_queue.nth
)
SELECT copy, source FROM of_timers
UNION ALL SELECT copy, source FROM of_levels
