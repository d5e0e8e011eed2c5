-- of: timers
-- looks at: alike of fates WHERE kind <= 1
-- counts: a message of the timer topic
-- says: It has exactly one unit that no hop linked, unless it waits behind the queue cursor or is
--   done. At most one unit of it waits in a slot ahead. A broker fires overdue timers without a
--   unit.
-- means: Without a unit it never fires; with two it fires twice.
--
-- A broker fires what is overdue without any unit, and drops such a delete; it drops a cancelled timer
-- in a slot on its way, with its last unit. A handover gives units up that nobody needs. A broker that
-- was killed links some again: of these the last one counts.
SELECT 'commitlog' AS file, message AS place,
  'no unit stands for this message' AS reason, sources.is_wheel_torn AS is_torn
FROM fates CROSS JOIN sources
WHERE kind <= 1 AND NOT has_unit AND NOT is_unlinked AND NOT is_old AND NOT is_copied_by_broker
  AND (kind = 0 OR is_ours) AND copies = 0 AND due_ms >= sources.read_ms AND NOT is_deleted
UNION ALL
SELECT 'commitlog', message,
  CASE WHEN is_linked_by_broker THEN 'more than one unit stands for this message, by a broker'
    ELSE 'more than one unit stands for this message' END,
  is_linked_by_broker OR sources.is_wheel_torn
FROM fates CROSS JOIN sources
WHERE kind = 0 AND (first_units > 1 OR waiting_units > 1)
