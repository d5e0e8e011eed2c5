-- looks at: groups, stores
-- measures: seconds since the first message was fired that a group has not read
-- means: A group does not keep up, or has no consumer any more. The messages that it has not read
--   are kept.
-- do: See timerstore groups.
-- warn: 3600
-- fail: 86400
-- says: Group {name} has not read {lag:message} of {topic}, the first for {age_ms:span}.
-- none: No group has anything to read.
-- place: group {name}: {lag:,} unread for {age_ms:span}
SELECT read.store, greatest(0, stores.at_ms - read.oldest_ms) / 1000 AS value,
  count(*) OVER (PARTITION BY read.store) AS checked, read.group AS name, read.topic, read.lag,
  greatest(0, stores.at_ms - read.oldest_ms) AS age_ms,
  concat('consumequeue/', read.topic, '/', CAST(read.queue_id AS STRING)) AS file,
  20 * read.committed AS offset
FROM groups AS read JOIN stores ON stores.store = read.store
WHERE read.kind <> 'dead' AND read.oldest_ms IS NOT NULL
