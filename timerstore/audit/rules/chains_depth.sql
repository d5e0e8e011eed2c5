-- looks at: slot_load
-- measures: units in the longest chain
-- means: All units of a chain are read before its slot fires.
-- do: Spread the due times, or make a new store with a smaller precision_ms.
-- warn: 100000
-- fail: 1000000
-- says: The longest chain has {depth:unit}.
-- none: The wheel holds no unit ahead.
-- place: {time_ms:second}: {depth:unit} in its chain
SELECT store, depth AS value, count(*) OVER (PARTITION BY store) AS checked, time_ms, depth,
  'timerwheel' AS file, 32 * coalesce(load.index, 0) AS offset
FROM slot_load AS load
