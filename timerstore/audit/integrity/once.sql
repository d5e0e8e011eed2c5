-- of: timers
-- looks at: alike of fates WHERE copies > 0
-- counts: a message that was copied
-- says: Exactly one copy was made of it when it was fired, rolled, or delivered from its delay
--   level.
-- means: A timer was fired twice.
SELECT 'commitlog' AS file, message AS place,
  'more than one copy was made of this message' AS reason, FALSE AS is_torn
FROM fates WHERE copies > 1
