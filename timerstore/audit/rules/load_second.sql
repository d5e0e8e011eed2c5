-- looks at: slot_load, stores, machine
-- measures: how many times its own length the machine needs to fire the busiest slot
-- means: The last timers of that slot will be late by that factor.
-- do: Spread the due times by a few random seconds: see docs/howto/capacity.md.
-- warn: 1
-- fail: 10
-- says: The busiest {precision_ms:slot} has {timers:timer}. At {fire_rate_per_s:,.0f} a second,
--   firing them takes {needed_ms:span}.
-- none: No timer waits, or fire_rate was not given.
-- place: {time_ms:second}: {timers:timer}; {top_units:unit} of topic {top_topic}
SELECT store, value, count(*) OVER (PARTITION BY store) AS checked, time_ms, timers, top_units,
  top_topic, precision_ms, fire_rate_per_s, value * precision_ms AS needed_ms,
  'timerwheel' AS file, position AS offset
FROM (
  SELECT load.store, load.time_ms, load.fires AS timers, load.top_units, load.top_topic,
    stores.precision_ms, machine.fire_rate_per_s, 32 * coalesce(load.index, 0) AS position,
    load.fires * 1000 / machine.fire_rate_per_s / stores.precision_ms AS value
  FROM slot_load AS load JOIN stores ON stores.store = load.store CROSS JOIN machine
  WHERE load.fires > 0 AND machine.fire_rate_per_s IS NOT NULL
) AS slots
