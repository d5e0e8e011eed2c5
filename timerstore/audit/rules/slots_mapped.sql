-- looks at: slot_load
-- measures: the share of units that are in another slot than the due times of their messages say
-- means: Those timers fire late or early.
-- do: Compare precision_ms, roll_window_slots and wheel_slot_count in timerstore.json with the
--   settings of the program that wrote the store, and run timerstore validate.
-- warn: 0
-- fail: 0.001
-- says: {misplaced:unit} of {checked:,} are in other slots than their due times say.
-- none: The wheel holds no unit ahead.
-- place: {time_ms:second}: {live:unit}, {expected:,} expected
SELECT store, misplaced / greatest(1, checked) AS value, checked, -abs(more) AS by_size, time_ms,
  live, expected, misplaced, CASE WHEN more <> 0 THEN 'timerwheel' END AS file, position AS offset
FROM (
  SELECT store, time_ms, live, expected, more, position,
    greatest(sum(greatest(more, 0)) OVER (PARTITION BY store),
      sum(greatest(-more, 0)) OVER (PARTITION BY store)) AS misplaced,
    greatest(sum(live) OVER (PARTITION BY store), sum(expected) OVER (PARTITION BY store))
      AS checked
  FROM (
    SELECT store, time_ms, live, expected, live - late - expected AS more,
      32 * coalesce(load.index, 0) AS position
    FROM slot_load AS load
  ) AS slots
) AS counted
