-- One row: the timers that wait for their next roll, and what their rolls will do.
SELECT coalesce(sum(timers), 0) AS rolling, coalesce(sum(hops * timers), 0) AS hops,
  coalesce(sum(hops * bytes), 0) AS hop_bytes
FROM rolls
