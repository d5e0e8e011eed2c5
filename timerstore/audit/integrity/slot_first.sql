-- of: slots
-- looks at: slots
-- counts: a used slot
-- says: The chain ends at the slot's first unit, unless the slot has passed: then nobody reads it.
-- means: The oldest timers of the slot were lost, or the slot was torn.
SELECT 'timerwheel' AS file, 32 * slots.ring_index + 8 AS place,
  'the chain does not end at the slot''s first unit' AS reason,
  slots.last_unit >= sources.slots_anew AS is_torn
FROM held JOIN slots ON slots.slot = held.slot
CROSS JOIN sources
WHERE CASE WHEN held.end_prev = -1 THEN held.end_unit <> slots.first_unit
  WHEN held.end_prev < sources.units_start THEN sources.floor_at = 0 ELSE FALSE END
