-- A row is a run of a chain that its slot leads to, up to its unit `top`: the slot's last one, or one
-- to which another run of the slot points back. A whole chain is run 0.
WITH ends AS (
  SELECT chains.slot, chains.unit, chains.run
  FROM chains JOIN slots ON slots.slot = chains.slot AND slots.last_unit = chains.unit
)
SELECT slot, run, max(unit) AS top FROM (
  SELECT slot, run, unit FROM ends
  UNION ALL
  SELECT target.slot, target.run, target.unit
  FROM chains AS jump JOIN chains AS target ON target.slot = jump.slot AND target.unit = jump.prev
  JOIN ends ON ends.slot = jump.slot
  WHERE jump.is_broken AND jump.unit > target.unit AND jump.unit <= ends.unit
) AS reached GROUP BY slot, run
