-- A row is a slot that has units: what they are, and whether a slot ahead has a place where its chain
-- breaks. A chain is whole if each unit points to the one before it in its slot, and the first one to
-- none, or to one that retention removed. Then each points back; all that they point to is what the
-- first one points to, and all units but the last. Their sums tell that, and those of their cubes,
-- modulo two primes: what differs by a multiple of one differs for the other. So no slot's units are put
-- in order.
WITH parts AS (
  SELECT *, CASE WHEN is_delete THEN -1 ELSE 1 END AS step,
    unit % 2147483647 AS u, prev % 2147483647 AS p, unit % 2147483629 AS v, prev % 2147483629 AS q
  FROM units CROSS JOIN sources
), sums AS (
  SELECT slot, count(*) AS units, count(CASE WHEN is_delete THEN 1 END) AS deletes,
    count(CASE WHEN is_superseded AND NOT is_delete THEN 1 END) AS superseded,
    sum(CASE WHEN is_superseded OR is_roll THEN 0 ELSE step END) AS fires,
    sum(CASE WHEN is_superseded OR NOT is_roll THEN 0 ELSE step END) AS rolls,
    min(unit) AS first_unit, max(unit) AS last_unit, min(prev) AS first_prev,
    slot >= min(read_slot) AS is_ahead,
    max(CASE WHEN prev >= unit THEN 1 ELSE 0 END) = 1 OR min(prev) >= min(units_start) AS is_odd,
    max(unit) % 2147483647 AS last_u, min(prev) % 2147483647 AS first_p, sum(u - p) AS differ,
    max(unit) % 2147483629 AS last_v, min(prev) % 2147483629 AS first_q,
    sum(u * u % 2147483647 * u % 2147483647 - p * p % 2147483647 * p % 2147483647) AS cubes_differ,
    sum(v * v % 2147483629 * v % 2147483629 - q * q % 2147483629 * q % 2147483629) AS others_differ
  FROM parts GROUP BY slot
)
SELECT slot, units, deletes, superseded, fires, rolls, first_unit, last_unit, first_prev,
  is_ahead AND (is_odd OR differ <> last_u - first_p
    OR cubes_differ <> last_u * last_u % 2147483647 * last_u % 2147483647
      - first_p * first_p % 2147483647 * first_p % 2147483647
    OR others_differ <> last_v * last_v % 2147483629 * last_v % 2147483629
      - first_q * first_q % 2147483629 * first_q % 2147483629) AS is_broken
FROM sums
