-- looks at: slot_load, stores
-- measures: the bytes that rolls will still write, for each pending byte
-- means: Many timers are due far beyond the roll window, so they hop many times.
-- do: Make a new store with a larger roll_window_slots, or keep timers that are due in years
--   elsewhere.
-- warn: 5
-- fail: 50
-- least: 1000
-- says: {checked:timer} wait for {hops:roll}. Rolls will write {hop_bytes:bytes}.
-- none: Fewer than {least:timer} lie beyond the roll window.
SELECT stores.store, stores.hop_bytes / greatest(1, sum(load.bytes)) AS value,
  stores.rolling AS checked, stores.hops, stores.hop_bytes
FROM stores JOIN slot_load AS load ON load.store = stores.store
WHERE stores.rolling > 0
GROUP BY stores.store, stores.rolling, stores.hops, stores.hop_bytes
