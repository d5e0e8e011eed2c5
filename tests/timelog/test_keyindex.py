"""The key index: the twin writes what RocketMQ wrote, the kernels what the twin does."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.naive_keys import HEADER, NaiveIndexFile, entries_of, java_hash, words_of
from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore
from timerstore.services.engine import key_files
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.writing.keyindex import file_bytes, header_of

GOLDEN = Path(__file__).parent.parent / "golden" / "index.json"
START_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
TIMERS, LEVELS = "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"


def test_the_twin_writes_what_rocketmq_wrote() -> None:
    golden: dict[str, Any] = json.loads(GOLDEN.read_text())
    sizes = golden["slots"], golden["entries"]
    files = [NaiveIndexFile(*sizes)]
    for message in golden["messages"]:
        unique = [message["unique"]] if message["unique"] else []
        for key in [*unique, *words_of(message["keys"])]:
            if files[-1].is_full:
                files.append(NaiveIndexFile(*sizes, files[-1].end_ms, files[-1].end_offset))
            files[-1].put(f"{message['topic']}#{key}", message["offset"], message["stored_ms"])
    assert [file.encode().hex() for file in files] == list(golden["files"].values())
    assert len(files) == 3
    for message in golden["messages"]:
        for key in words_of(message["keys"]):
            found = [at for file in files for at in file.find(f"{message['topic']}#{key}")]
            assert message["offset"] in found


def test_hashes_of_java() -> None:
    assert java_hash("polygenelubricants") == 0  # its hash has no positive counterpart
    assert java_hash("FB") == java_hash("Ea") == 2236


CONFIG = replace(SMALL, wheel_slot_count=4_096, roll_window_slots=4_000)  # nothing rolls
KEYS = st.one_of(
    st.sampled_from(["user:7", "two words", " around  ", "  ", "FB", "Ea", "äö€😀", "x" * 90]),
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\1\2"), min_size=1),
)
PUTS = st.lists(
    st.tuples(st.one_of(st.none(), KEYS), st.sampled_from([0, 0, 2]), st.integers(0, 9_000)),
    max_size=30,
)


@pytest.mark.timeout(120, method="signal")
@pytest.mark.whole
@given(puts=PUTS, room=st.sampled_from([2, 3, 8, 40]))
def test_files_are_those_of_the_twin(
    puts: list[tuple[str | None, int, int]], room: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is put, the files hold the bytes that the twin writes."""
    clock, path = ManualClock(START_MS), tmp_path_factory.mktemp("keys") / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_files, "ROOM_MIN", room)
        patch.setattr(key_files, "ROOM_MAX", room)
        expected: list[NaiveIndexFile] = []
        with TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()) as store:
            for key, level, wait_ms in puts:
                clock.advance(timedelta(milliseconds=wait_ms))
                if level:
                    id = store.put(b"x", key=key, delay_level=level)
                else:
                    store.cancel(store.put(b"gone", at_ms=START_MS + HOUR_MS))
                    id = store.put(b"x", key=key, at_ms=START_MS + HOUR_MS)
                store.core.engine.keys.catch_up()
                at = int(id[12:24], 16) & ~fmt.LEVEL_MARK
                for word in words_of(key):
                    if not expected or expected[-1].is_full:
                        last = expected[-1] if expected else NaiveIndexFile(room, room)
                        expected.append(NaiveIndexFile(room, room, last.end_ms, last.end_offset))
                    topic = LEVELS if level else TIMERS
                    expected[-1].put(f"{topic}#{word}", at, clock.now_ms)
            files = sorted((path / "index").glob("*"))
            assert [file.read_bytes() for file in files] == [each.encode() for each in expected]


def test_views_of_a_file() -> None:
    view = np.zeros(file_bytes(5), np.uint8)
    header_of(view)["next_entry"] = 3
    entries_of(view, 1, 2)[0]["offset"] = 77
    assert HEADER.unpack_from(view.tobytes())[5] == 3
    made = NaiveIndexFile(5, 5)
    made.put("k", 77, 0)
    assert entries_of(np.frombuffer(made.encode(), np.uint8), 1, 2)[0]["offset"] == 77
