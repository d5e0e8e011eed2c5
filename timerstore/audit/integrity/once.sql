-- counts: fates WHERE copies > 0
SELECT 'commitlog' AS file, message AS place,
  'more than one copy was made of this message' AS reason, FALSE AS is_torn
FROM fates WHERE copies > 1
