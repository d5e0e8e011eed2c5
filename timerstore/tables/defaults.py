"""What a table is read with if nothing is said."""

from __future__ import annotations

from typing import Final

SPLIT_BYTES: Final = 64 << 20
"""Of the store's bytes, in one split: a second or two of work."""
CLOCK_SLACK_MS: Final = 86_400_000
"""How far the clock may have been set back while the log was written, for filters on its times."""
