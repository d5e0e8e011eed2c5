-- A row is a copy, beside its source.
SELECT copy.message, copy.kind, copy.rolls, copy.due_ms, copy.origin, copy.is_filler,
  copy.is_ours, copy.is_fired, copy.is_without_due, copy.deleted_at,
  source.message AS source, source.kind AS source_kind, source.rolls AS source_rolls,
  source.due_ms AS source_due_ms, source.is_filler AS is_source_filler,
  source.is_waiting AS is_source_waiting, source.is_first AS is_source_first
FROM fates AS copy JOIN fates AS source
  ON source.message = copy.source
