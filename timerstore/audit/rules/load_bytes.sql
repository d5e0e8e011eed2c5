-- looks at: slot_load, stores, machine
-- measures: how many times its own length the machine needs to read and append the messages of the
--   slot with most bytes
-- means: The last timers of that slot will be late by that factor, though they may be few.
-- do: Keep large bodies elsewhere and put their names, or spread the due times.
-- warn: 1
-- fail: 10
-- says: The heaviest {precision_ms:slot} has {slot_bytes:bytes} in {timers:timer}. At
--   {rate:bytes} a second, firing them takes {needed_ms:span}.
-- none: No timer waits, or fire_bytes_per_s was not given.
-- place: {time_ms:second}: {slot_bytes:bytes}; {top_units:unit} of topic {top_topic}
SELECT store, value, count(*) OVER (PARTITION BY store) AS checked, time_ms, timers, slot_bytes,
  rate, value * precision_ms AS needed_ms, precision_ms, top_units, top_topic,
  'timerwheel' AS file, position AS offset
FROM (
  SELECT load.store, load.time_ms, load.live AS timers, load.bytes AS slot_bytes, load.top_units,
    load.top_topic, stores.precision_ms, machine.fire_bytes_per_s AS rate,
    32 * coalesce(load.index, 0) AS position,
    load.bytes * 1000 / machine.fire_bytes_per_s / stores.precision_ms AS value
  FROM slot_load AS load JOIN stores ON stores.store = load.store CROSS JOIN machine
  WHERE load.bytes > 0 AND machine.fire_bytes_per_s IS NOT NULL
) AS slots
