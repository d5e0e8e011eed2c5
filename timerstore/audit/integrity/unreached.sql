-- of: slots
-- looks at: units of held
-- counts: a unit of a slot that has not passed
-- says: The chain of its slot leads to it.
-- means: Its timer does not fire.
SELECT 'timerlog' AS file, chains.unit AS place,
  'no slot leads to this unit: its timer would not fire' AS reason,
  chains.unit >= sources.slots_anew AS is_torn
FROM chains CROSS JOIN sources
LEFT JOIN reach ON reach.slot = chains.slot AND reach.run = chains.run
WHERE chains.is_ahead AND NOT chains.is_superseded AND chains.unit > coalesce(reach.top, -1)
