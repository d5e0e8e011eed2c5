-- A row is a message that a timer has: beside its units, its copies, its source, its deletes. Those of
-- timers that are in order are one row for all that are alike, without an offset.
WITH linked AS (
  SELECT message, count(CASE WHEN NOT is_hop THEN 1 END) AS first_units,
    count(CASE WHEN is_waiting THEN 1 END) AS waiting_units,
    max(unit * 2 + CASE WHEN is_by_broker THEN 1 ELSE 0 END) % 2 = 1 AS is_linked_by_broker
  FROM odd_units GROUP BY message
), copied AS (
  SELECT copy, source, FALSE AS is_matched FROM named
  UNION ALL SELECT copy, source, TRUE FROM matched
), made AS (
  SELECT source, count(*) AS copies, count(CASE WHEN is_matched THEN 1 END) > 0 AS is_matched
  FROM copied GROUP BY source
), met AS (
  SELECT messages.message, who, kind, due_ms, rolls, topic, origin, is_copy, is_unlinked, is_old,
    is_ours, is_without_due, is_first, is_filler, linked.message IS NOT NULL AS has_unit,
    coalesce(first_units, 0) AS first_units, coalesce(waiting_units, 0) AS waiting_units,
    coalesce(is_linked_by_broker, FALSE) AS is_linked_by_broker,
    coalesce(waiting_units, 0) > 0 OR is_unlinked AS is_waiting, copied.source,
    coalesce(made.copies, 0) AS copies, coalesce(made.is_matched, FALSE) AS is_copied_by_broker
  FROM odd_messages AS messages
  LEFT JOIN linked ON linked.message = messages.message
  LEFT JOIN made ON made.source = messages.message
  LEFT JOIN copied ON copied.copy = messages.message
), deletes AS (
  SELECT who, count(CASE WHEN is_waiting AND copies = 0 THEN 1 END) > 0 AS is_still_there,
    min(CASE WHEN is_ours AND origin < 0 THEN message END) AS deleted_at
  FROM met WHERE kind = 1 GROUP BY who
)
SELECT met.message, kind, due_ms, rolls, topic, origin, is_copy, is_unlinked, is_old, is_ours,
  is_without_due, is_first, is_filler, has_unit, first_units, waiting_units, is_linked_by_broker,
  is_waiting, source, copies, is_copied_by_broker, deletes.who IS NOT NULL AS is_deleted, deleted_at,
  kind = 2 AND (NOT is_without_due OR source IS NOT NULL) AS is_fired,
  copies = 0 AND is_waiting AND (kind = 0 AND NOT coalesce(is_still_there, FALSE)
    OR kind = 3 AND NOT (is_first AND deletes.who IS NOT NULL)) AS is_pending, 1 AS alike
FROM met LEFT JOIN deletes ON deletes.who = met.who
UNION ALL
SELECT NULL AS message, part.kind, due_ms, 0 AS rolls, topic, -1 AS origin, FALSE AS is_copy,
  FALSE AS is_unlinked, FALSE AS is_old, TRUE AS is_ours, FALSE AS is_without_due, FALSE AS is_first,
  FALSE AS is_filler, TRUE AS has_unit, 1 AS first_units, CASE WHEN has_waiting THEN 1 ELSE 0 END
  AS waiting_units, FALSE AS is_linked_by_broker, has_waiting OR state = 'pending' AS is_waiting,
  CASE WHEN part.kind = 2 THEN -1 END AS source, CASE WHEN state = 'fired' AND part.kind = 0 THEN 1
  ELSE 0 END AS copies, FALSE AS is_copied_by_broker, state = 'cancelled' AS is_deleted,
  NULL AS deleted_at, part.kind = 2 AS is_fired, state = 'pending' AS is_pending, alike
FROM screened JOIN (VALUES ('pending', 0), ('fired', 0), ('fired', 2), ('cancelled', 0),
  ('cancelled', 1)) AS part(of_state, kind) ON part.of_state = screened.state
