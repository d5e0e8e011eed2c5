-- of: slots
-- looks at: slots
-- counts: a used slot
-- says: Its last unit belongs to this slot.
-- means: None of the slot's timers fires.
SELECT 'timerwheel' AS file, 32 * slots.ring_index + 16 AS place,
  'the slot''s last unit belongs to another slot' AS reason,
  slots.last_unit >= sources.slots_anew AS is_torn
FROM slots CROSS JOIN sources
LEFT JOIN slot_sums ON slot_sums.slot = slots.slot AND slot_sums.last_unit = slots.last_unit
LEFT JOIN chains ON chains.slot = slots.slot AND chains.unit = slots.last_unit
WHERE slot_sums.slot IS NULL AND chains.unit IS NULL AND NOT (slots.last_unit < sources.units_start
  AND (slots.slot < sources.read_slot OR sources.floor_at > 0))
