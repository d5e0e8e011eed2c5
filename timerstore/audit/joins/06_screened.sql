-- A row is a kind of timers that are in order, with how many are alike; or a timer, `who`, that is
-- looked at message by message. In order is one of ours of which we have no more than
--   pending    its put, and its place in the queue or units of which one waits
--   fired      its put, the copy of it, and units of which none waits
--   cancelled  its put, a delete, and the units of both, which wait or have passed together.
-- No rule says anything of these. In `marks` each digit counts something: from the right puts, puts
-- that are not linked yet, copies, units that no hop linked, units that wait; deletes, units of
-- deletes, those that wait; what lies to the left of them is out of order. The hint has Spark bring the
-- rows of a timer together before it adds them up: what one task reads are parts of as many timers.
WITH parts AS (
  SELECT who, CASE
      WHEN NOT is_ours OR rolls > 0 OR is_without_due OR is_filler THEN 1000000000
      WHEN kind = 0 AND message = who AND NOT (is_handed_over AND message < checkpoint_floor)
        THEN CASE WHEN is_unlinked THEN 11 ELSE 1 END
      WHEN kind = 1 AND NOT is_unlinked THEN 100000
      WHEN kind = 2 AND origin = who AND message > who THEN 100
      ELSE 1000000000 END AS mark,
    CASE WHEN kind = 1 THEN message ELSE 0 END AS deleting,
    CASE WHEN kind = 0 THEN due_ms END AS due_ms, CASE WHEN kind = 0 THEN topic END AS topic
  FROM messages CROSS JOIN sources
  UNION ALL
  SELECT who, CASE
      WHEN is_early OR is_delete = (message = who) THEN 1000000000
      WHEN is_delete THEN CASE WHEN is_waiting THEN 11000000 ELSE 1000000 END
      ELSE CASE WHEN is_hop THEN 0 ELSE 1000 END + CASE WHEN is_waiting THEN 10000 ELSE 0 END END,
    CASE WHEN is_delete THEN -message ELSE 0 END, NULL, NULL
  FROM units WHERE message >= 0
  UNION ALL
  SELECT origin, 1000000000, 0, NULL, NULL FROM messages WHERE is_copy AND origin >= 0 AND origin <> who
), timers AS (
  SELECT who, sum(mark) AS marks, max(due_ms) AS due_ms, max(topic) AS topic,
    count(*) <= 9 AND sum(deleting) = 0 AS is_exact
  FROM (SELECT /*+ REPARTITION(who) */ * FROM parts) AS together GROUP BY who
), judged AS (
  SELECT who, due_ms, topic, marks IN (10001, 11001, 11110001, 11111001) AS has_waiting, CASE
      WHEN NOT is_exact THEN 'odd'
      WHEN marks IN (11, 10001, 11001) THEN 'pending'
      WHEN marks IN (101, 1101) THEN 'fired'
      WHEN marks IN (1100001, 1101001, 11110001, 11111001) THEN 'cancelled'
      ELSE 'odd' END AS state
  FROM timers
), told AS (
  SELECT CASE WHEN state = 'odd' THEN who END AS who, state, has_waiting,
    CASE WHEN state = 'pending' THEN 60000 * CAST(floor(due_ms / 60000) AS BIGINT) END AS due_ms,
    CASE WHEN state = 'pending' THEN topic END AS topic
  FROM judged
)
SELECT who, state, has_waiting, due_ms, topic, count(*) AS alike
FROM told GROUP BY who, state, has_waiting, due_ms, topic
