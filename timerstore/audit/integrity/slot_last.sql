-- of: slots
-- looks at: slots
-- counts: a used slot
-- says: Its last unit belongs to this slot.
-- means: None of the slot's timers fires.
SELECT 'timerwheel' AS file, 32 * slots.ring_index + 16 AS place,
  'the slot''s last unit belongs to another slot' AS reason,
  slots.last_unit >= sources.linked_again AS is_torn
FROM slots CROSS JOIN sources
LEFT JOIN units ON units.slot = slots.slot
  AND units.unit = slots.last_unit
WHERE units.unit IS NULL AND NOT (slots.last_unit < sources.units_start
  AND (slots.slot < sources.read_slot OR sources.floor_at > 0))
