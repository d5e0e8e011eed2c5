-- of: slots
-- looks at: slots
-- counts: a used slot
-- says: Its count is the number of its units minus twice the number of its deletes, unless the slot
--   has passed.
-- means: Only an estimate is wrong: firing does not use it.
-- severity: warning
SELECT 'timerwheel' AS file, 32 * slots.ring_index + 24 AS place,
  'the slot''s count is not that of its chain' AS reason,
  slots.last_unit >= sources.slots_anew AS is_torn
FROM held JOIN slots ON slots.slot = held.slot
CROSS JOIN sources
WHERE held.end_prev = -1 AND held.end_unit = slots.first_unit AND held.net <> slots.stored_count
