"""The sizes of a store that a test can make many times."""

from timerstore import Config, Tuning

SMALL = Config(
    durability="process",
    retention_ms=3_600_000,
    tuning=Tuning(
        wheel_slot_count=128,
        roll_window_slots=40,
        commitlog_segment_bytes=1 << 16,
        consumequeue_segment_bytes=2000,
        timerlog_segment_bytes=5248,
        near_count_max=1 << 16,
    ),
)
