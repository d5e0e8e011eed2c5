-- A row is a copy that says of which message it is one: ours do.
SELECT copy.message AS copy, source.message AS source
FROM odd_messages AS copy JOIN odd_messages AS source
  ON source.message = copy.origin
WHERE copy.is_copy AND copy.origin >= 0
