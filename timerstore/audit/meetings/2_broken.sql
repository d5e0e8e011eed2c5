-- A row is a slot whose chain is not whole.
SELECT DISTINCT slot FROM chains WHERE is_broken
