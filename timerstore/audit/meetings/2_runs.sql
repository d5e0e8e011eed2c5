-- A row is a unit of a slot whose chain is not whole; `run` counts the places up to here where it breaks.
SELECT chains.slot, unit, prev, is_broken, sum(CASE WHEN is_broken THEN 1 ELSE 0 END) OVER (
  PARTITION BY chains.slot ORDER BY unit ROWS UNBOUNDED PRECEDING) AS run
FROM chains JOIN broken ON broken.slot = chains.slot
