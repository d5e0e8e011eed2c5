-- looks at: slot_load
-- measures: the share of units that fire nothing: deletes, with the timers that they cancel
-- means: Most units of the wheel fire nothing. A unit is dropped when its slot has passed.
-- do: Put timers that are often cancelled later, or with a shorter delay.
-- warn: 0.5
-- fail: 0.9
-- least: 10000
-- says: {value:share} of {checked:unit} fire nothing: {deletes:delete} with what they cancel.
-- none: The wheel has fewer than {least:unit} ahead.
--
-- What cleaning or a hop moved elsewhere is left out: it comes and goes with the store's own work.
SELECT store, least(1, 2 * deletes / units) AS value, units AS checked, deletes
FROM (
  SELECT store, sum(deletes) AS deletes, sum(units - superseded) AS units
  FROM slot_load GROUP BY store
) AS sums
WHERE units > 0
