-- looks at: slot_load, stores
-- measures: chi-square of the ring's 64 arcs against what due times predict, by degree of freedom
-- means: The wheel holds units in wrong slots.
-- do: Run timerstore validate, which names the slots; then restore a backup, or make a new store
--   from this one with timerstore salvage.
-- warn: 1
-- fail: 10
-- says: Over 64 arcs of the ring chi-square is {value:,.2f} by degree of freedom.
-- none: The wheel holds no unit ahead.
-- place: from index {first_index:,}: {actual:unit}, {expected:,} expected
WITH units AS (
  SELECT load.store, stores.ring_slots,
    least(63, CAST(floor(load.index * 64 / stores.ring_slots) AS BIGINT)) AS arc,
    greatest(0, least(load.live, load.depth) - load.late) AS actual, 0 AS expected
  FROM slot_load AS load JOIN stores ON stores.store = load.store
  WHERE load.index IS NOT NULL
  UNION ALL
  SELECT load.store, stores.ring_slots,
    CAST(floor(load.slot % stores.ring_slots * 64 / stores.ring_slots) AS BIGINT) AS arc,
    0 AS actual, load.expected
  FROM slot_load AS load JOIN stores ON stores.store = load.store
), arcs AS (
  SELECT store, arc, min(ring_slots) AS ring_slots, sum(actual) AS actual,
    sum(expected) AS expected
  FROM units GROUP BY store, arc
)
SELECT store,
  sum((actual - expected) * (actual - expected) / greatest(expected, 1))
    OVER (PARTITION BY store) / 63 AS value,
  sum(expected) OVER (PARTITION BY store) AS checked, -abs(actual - expected) AS by_size, actual,
  expected, CAST(floor(arc * ring_slots / 64) AS BIGINT) AS first_index,
  CASE WHEN actual <> expected THEN 'timerwheel' END AS file,
  32 * CAST(floor(arc * ring_slots / 64) AS BIGINT) AS offset
FROM arcs
