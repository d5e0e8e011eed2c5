"""What a broker would read of a store that was handed to it: naive, slot by slot."""

from pathlib import Path

from tests import naive


class AsBroker:
    """A closed store's wheel, timer log and commit log, as a broker goes through them.

    It knows the read cursor and nothing of ours: no floor, no copies, no cancelled set. On opening
    it makes each unit of the timer log's last files the last of its slot, in their order.
    """

    def __init__(self, path: Path, precision_ms: int = 1_000) -> None:
        log, units = _files(path / "commitlog"), _files(path / "timerlog")
        self.messages = {
            each.offset: each for each in naive.scan_commit_log(log, min(log)).messages
        }
        self.units = naive.scan_timer_log(units).units
        self.segment_bytes = len(units[min(units)])
        check = naive.decode_timercheck((path / "config" / "timercheck").read_bytes())
        self.read_slot = check.read_ms // precision_ms
        slots = naive.used_slots((path / "timerwheel").read_bytes()).values()
        self.last = {slot.number: slot.last_offset for slot in slots}
        self.after_revising = dict(self.last)
        for offset in sorted(self.units):
            unit = self.units[offset]
            self.after_revising[unit.time_ms // precision_ms] = offset

    def fired(self, last: dict[int, int]) -> list[naive.Message]:
        """Return the messages that it fires or rolls, each as often as it reaches it."""
        found = []
        for slot, offset in sorted(last.items()):
            if slot < self.read_slot:
                continue
            chain = []
            while offset in self.units:  # where they were removed, it stops
                chain.append(self.units[offset])
                offset = self.units[offset].prev_pos
            deletes = {
                self.messages[unit.message_offset].properties["TIMER_DEL_UNIQKEY"]
                for unit in chain
                if unit.is_delete and not unit.is_roll
            }
            for unit in chain:
                message = self.messages.get(unit.message_offset)
                if message is None or unit.is_delete:
                    continue
                key = f"{message.properties['REAL_TOPIC']}+{message.properties['UNIQ_KEY']}"
                found += [message] * (key not in deletes)
        return found

    def misled_files(self) -> list[int]:
        """The files of the timer log that it would remove while it still needs their units.

        It removes the oldest once the message of its last unit is before the commit log's start.
        """
        reached = set()
        for slot, offset in self.last.items():
            while slot >= self.read_slot and offset in self.units:
                reached.add(offset)
                offset = self.units[offset].prev_pos
        ends = max(self.units, default=0) // self.segment_bytes * self.segment_bytes
        found = []
        for begin in range(min(self.units, default=0), ends, self.segment_bytes):
            mine = [at for at in self.units if begin <= at < begin + self.segment_bytes]
            needed = [self.units[at].message_offset for at in mine if at in reached]
            if self.units[max(mine)].message_offset < max(needed, default=-1):
                found.append(begin)
        return found

    def keys(self) -> list[str]:
        """Return the ids of the timers that it fires, sorted; as it finds them, and revised."""
        found = [sorted(m.properties["UNIQ_KEY"] for m in self.fired(last)) for last in self._both]
        assert found[0] == found[1], "a broker that revises its wheel fires others"
        return found[0]

    @property
    def _both(self) -> tuple[dict[int, int], dict[int, int]]:
        return self.last, self.after_revising


def _files(folder: Path) -> dict[int, bytes]:
    return {int(each.name): each.read_bytes() for each in folder.glob("0*")}
