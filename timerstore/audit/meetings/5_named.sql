-- A row is a copy that says of which message it is one: ours do.
SELECT copy.message AS copy, source.message AS source
FROM messages AS copy JOIN messages AS source
  ON source.message = copy.origin
WHERE copy.is_copy AND copy.origin >= 0
