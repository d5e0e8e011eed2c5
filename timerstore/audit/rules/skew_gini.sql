-- looks at: due, stores
-- measures: the Gini coefficient of the minutes that a topic uses, from an hour ahead on: 0 all
--   equal, towards 1 all in one
-- means: Most timers of the topic are due in few minutes.
-- do: If the topic is no campaign, spread its timers by a few random seconds: see
--   docs/howto/capacity.md.
-- warn: 0.95
-- least: 10000
-- says: {checked:timer} of topic {topic} have a Gini coefficient of {value:.2f}; {peak:,} are due
--   in one minute.
-- none: No topic has {least:timer} or more that are due an hour ahead or later.
-- place: topic {topic}: {value:.2f}, {peak:,} of {checked:,} in a minute
SELECT store, 2 * sum(nth * timers) / (count(*) * sum(timers)) - (count(*) + 1) / count(*) AS value,
  sum(timers) AS checked, topic, max(timers) AS peak, 'due' AS file, max(peak_ms) AS offset
FROM (
  SELECT due.store, due.topic, CAST(due.timers AS DOUBLE) AS timers,
    row_number() OVER (PARTITION BY due.store, due.topic ORDER BY due.timers, due.minute_ms) AS nth,
    first_value(due.minute_ms) OVER (
      PARTITION BY due.store, due.topic ORDER BY due.timers DESC, due.minute_ms) AS peak_ms
  FROM due JOIN stores ON stores.store = due.store
  WHERE due.minute_ms >= stores.at_ms + 3600000
) AS minutes
GROUP BY store, topic
