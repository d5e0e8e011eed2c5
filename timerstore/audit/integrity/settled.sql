-- counts: copies CROSS JOIN sources WHERE sources.is_our_store
--   AND is_source_waiting AND origin >= 0 AND source >= sources.floor_offset
SELECT 'commitlog' AS file, message AS place,
  'opening would find the source of this copy, but not the copy' AS reason, FALSE AS is_torn
FROM copies CROSS JOIN sources
WHERE sources.is_our_store AND is_source_waiting AND origin >= 0 AND source >= sources.floor_offset
  AND message < sources.scan_from
