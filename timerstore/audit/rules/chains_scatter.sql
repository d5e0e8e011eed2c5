-- looks at: slot_load
-- measures: MiB of the commit log's pages that firing one slot reads, at most
-- means: The messages of one slot lie far apart, because they were put at different times.
-- do: Use a machine whose memory holds the log, use a faster disk, or put timers of one instant
--   together.
-- warn: 64
-- fail: 1024
-- says: Firing the most scattered slot reads {read_bytes:bytes} for {needed_bytes:bytes} of
--   messages.
-- none: The wheel holds no unit ahead.
-- place: {time_ms:second}: {live:message}, {read_bytes:,} bytes of pages
SELECT store, read_bytes / 1048576 AS value, count(*) OVER (PARTITION BY store) AS checked,
  time_ms, live, read_bytes, load.bytes AS needed_bytes, 'timerwheel' AS file,
  32 * coalesce(load.index, 0) AS offset
FROM slot_load AS load
