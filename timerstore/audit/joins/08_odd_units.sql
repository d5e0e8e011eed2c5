-- A row is a unit of such a timer.
SELECT units.* FROM units JOIN screened ON screened.who = units.who WHERE units.message >= 0
