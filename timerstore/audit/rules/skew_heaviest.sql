-- looks at: due, stores
-- measures: the share of a topic's timers in the heaviest 1 % of the minutes that it uses, from an
--   hour ahead on
-- means: Most timers of the topic are due in few minutes.
-- do: If the topic is no campaign, spread its timers by a few random seconds: see
--   docs/howto/capacity.md.
-- warn: 0.5
-- least: 10000
-- says: {checked:timer} of topic {topic} have {value:share} in the heaviest 1 % of their minutes;
--   {peak:,} are due in one.
-- none: No topic has {least:timer} or more that are due an hour ahead or later, in a hundred
--   minutes or more.
-- place: topic {topic}: {value:share}, {peak:,} of {checked:,} in a minute
SELECT store, sum(CASE WHEN nth <= floor(minutes / 100) THEN timers ELSE 0 END) / sum(timers)
    AS value,
  sum(timers) AS checked, topic, max(timers) AS peak, 'due' AS file,
  max(CASE WHEN nth = 1 THEN minute_ms END) AS offset
FROM (
  SELECT due.store, due.topic, due.minute_ms, CAST(due.timers AS DOUBLE) AS timers,
    row_number() OVER (
      PARTITION BY due.store, due.topic ORDER BY due.timers DESC, due.minute_ms) AS nth,
    count(*) OVER (PARTITION BY due.store, due.topic) AS minutes
  FROM due JOIN stores ON stores.store = due.store
  WHERE due.minute_ms >= stores.at_ms + 3600000
) AS ranked
WHERE minutes >= 100
GROUP BY store, topic
