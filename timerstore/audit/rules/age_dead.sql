-- looks at: groups
-- measures: dead letters
-- means: A consumer gave these messages up.
-- do: Run timerstore dead list to see what failed, mend it, then run timerstore dead retry.
-- warn: 0
-- says: {value:dead letter}, most of group {name}.
-- none: No dead letter.
-- place: group {name}: {lag:dead letter}
SELECT read.store, sum(read.lag) OVER (PARTITION BY read.store) AS value,
  count(*) OVER (PARTITION BY read.store) AS checked, -read.lag AS by_size, read.group AS name,
  read.lag, concat('consumequeue/', read.topic, '/', CAST(read.queue_id AS STRING)) AS file,
  20 * read.committed AS offset
FROM groups AS read
WHERE read.kind = 'dead' AND read.lag > 0
