-- looks at: slot_load, stores, limits
-- measures: how many deviations the slot that stands out most lies above the slots beside it
-- means: Many timers are due at once. If nobody intended the peak, ask who puts them.
-- do: Spread the due times by a few random seconds: see docs/howto/capacity.md.
-- warn: 50
-- least: 1000
-- says: {time_ms:second}: {checked:timer}; {top_units:unit} of topic {top_topic};
--   {value:,.0f} deviations above the slots beside it.
-- none: No slot that is not about to fire has {least:timer} or more.
-- place: {time_ms:second}: {checked:timer}; {top_units:unit} of topic {top_topic}
--
-- A slot is compared with the 15 before it and with the 15 behind it: with those that hold more, so
-- that the edge of steady traffic is no peak. Slots that have passed, or lie behind the last that is
-- used, are no neighbours. A deviation is that of the median, no smaller than counts that come by
-- chance have, nor than 1.
WITH ends AS (
  SELECT load.store, max(load.slot) AS last_slot,
    CAST(floor(min(stores.stands_ms) / min(stores.precision_ms)) AS BIGINT) AS first_slot
  FROM slot_load AS load JOIN stores ON stores.store = load.store
  WHERE load.fires > 0 GROUP BY load.store
), heavy AS (
  SELECT load.store, load.slot, load.fires, ends.first_slot, ends.last_slot
  FROM slot_load AS load JOIN ends ON ends.store = load.store
  WHERE load.slot >= ends.first_slot + 15
    AND load.fires >= (SELECT greatest(max(least), 1) FROM limits WHERE rule = 'skew_neighbours')
), near AS (
  SELECT step FROM (VALUES (-15), (-14), (-13), (-12), (-11), (-10), (-9), (-8), (-7), (-6),
    (-5), (-4), (-3), (-2), (-1), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11),
    (12), (13), (14), (15)) AS steps(step)
), beside AS (
  SELECT heavy.store, heavy.slot, near.step > 0 AS is_behind, coalesce(load.fires, 0) AS fires
  FROM heavy CROSS JOIN near
  LEFT JOIN slot_load AS load
    ON load.store = heavy.store AND load.slot = heavy.slot + near.step
  WHERE heavy.slot + near.step BETWEEN heavy.first_slot AND heavy.last_slot
), sides AS (
  SELECT store, slot, is_behind, median(fires) AS middle,
    row_number() OVER (PARTITION BY store, slot ORDER BY median(fires) DESC, is_behind) AS nth
  FROM beside GROUP BY store, slot, is_behind
), middles AS (
  SELECT beside.store, beside.slot, sides.middle,
    1.4826 * median(abs(beside.fires - sides.middle)) AS deviation
  FROM beside JOIN sides
    ON sides.store = beside.store AND sides.slot = beside.slot AND sides.nth = 1
    AND sides.is_behind = beside.is_behind
  GROUP BY beside.store, beside.slot, sides.middle
)
SELECT load.store,
  (load.fires - middles.middle) / greatest(middles.deviation, sqrt(middles.middle), 1) AS value,
  load.fires AS checked, load.time_ms, load.top_units, load.top_topic, 'timerwheel' AS file,
  32 * coalesce(load.index, 0) AS offset
FROM middles JOIN slot_load AS load
  ON load.store = middles.store AND load.slot = middles.slot
