-- A row is a slot that is looked at unit by unit: its chain is not whole, or the wheel does not lead to
-- its last unit.
SELECT slot_sums.slot
FROM slot_sums CROSS JOIN sources LEFT JOIN slots ON slots.slot = slot_sums.slot
WHERE slot_sums.is_broken OR slots.last_unit <> slot_sums.last_unit
  OR slots.slot IS NULL AND slot_sums.slot >= sources.read_slot
