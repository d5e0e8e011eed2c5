"""Opening an engine: tried again, without what is damaged, until it is recovered."""

from __future__ import annotations

from pathlib import Path

from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import open_rebuilding
from timerstore.services.opening.recovery import recover
from timerstore.services.opening.recovery_findings import RecoveryFindings
from timerstore.services.world.clock import Clock
from timerstore.services.world.damage import Place
from timerstore.timelog.files.disk import Disk
from timerstore.values.config import Config


def open_engine(
    path: Path, config: Config, clock: Clock, disk: Disk
) -> tuple[Engine, RecoveryFindings]:
    """Return an engine whose services can run, and what recovery found."""

    def attempt(
        rebuild: frozenset[str], places: tuple[Place, ...]
    ) -> tuple[Engine, RecoveryFindings]:
        engine = Engine(path, config, clock, disk, rebuild)
        try:
            for place in places:
                engine.damage.note(place.file, place.offset, place.reason)
            return engine, recover(engine, clock.now_ms)
        except BaseException:
            engine.close_files()
            raise

    return open_rebuilding(path, disk, attempt)
