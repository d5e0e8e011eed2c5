-- of: timers
-- looks at: copies CROSS JOIN sources WHERE sources.is_our_store AND is_source_waiting AND origin
--   >= 0 AND source >= sources.checkpoint_floor
-- counts: a copy
-- says: If opening can still find its source, it lies at or after the cursor from which opening
--   looks for copies.
-- means: Opening the store would fire the timer again.
SELECT 'commitlog' AS file, message AS place,
  'opening would find the source of this copy, but not the copy' AS reason, FALSE AS is_torn
FROM copies CROSS JOIN sources
WHERE sources.is_our_store AND is_source_waiting AND origin >= 0 AND source >= sources.checkpoint_floor
  AND message < sources.scan_from
