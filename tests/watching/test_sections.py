"""Statistics as a text: what it names, how wide it is, how long."""

from datetime import timedelta
from pathlib import Path

from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore
from timerstore.testing.disk import QuietDisk
from timerstore.watching.sections import ROWS_MAX, WIDTH


def lines_of(store: TimerStore) -> list[str]:
    text = str(store.stats())
    lines = text.split("\n")
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in lines)
    return lines


def section(lines: list[str], name: str) -> list[str]:
    start = next(i for i, line in enumerate(lines) if line.startswith(name))
    stop = next((i for i in range(start + 1, len(lines)) if not lines[i]), len(lines))
    return lines[start:stop]


def test_an_empty_store(tmp_path: Path) -> None:
    with TimerStore(tmp_path / "s", config=SMALL, clock=ManualClock(), disk=QuietDisk()) as store:
        lines = lines_of(store)
    assert lines[0] == "pending 0  overdue 0  fired, not handled 0  dead letters 0"
    assert len(section(lines, "service")) == 6
    assert not any(line.startswith(("group ", "level ")) for line in lines)


def test_who_is_behind_is_named(tmp_path: Path) -> None:
    clock = ManualClock()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        store.put_many([b"x"] * 1_500, topic="orders")
        store.put_many([b"x"] * 3, topic="orphan")
        store.pull("orders", group="mailer", max_count=100, timeout=0).ack()
        store.put(b"x", topic="leveled", delay_level=2)
        clock.advance(timedelta(seconds=4))
        lines = lines_of(store)
    title, first, second, *_ = section(lines, "group ")
    assert title.split()[:5] == ["group", "of", "topic", "lag", "oldest"]
    assert first.split()[:5] == ["mailer", "orders", "1,400", "4", "s"]
    assert second.split()[:3] == ["(nobody)", "orphan", "3"]
    title, first, *others = section(lines, "topic")
    assert title.split()[:5] == ["topic", "pending", "in", "1", "min"]
    assert first.split() == ["leveled", "1", "1", "1", "1", "bytes"]
    assert [line.split()[:3] for line in others] == [
        ["orders", "1,500", "1,500"],
        ["orphan", "3", "3"],
    ]
    title, first = section(lines, "level ")
    assert title.split() == ["level", "delay", "end", "lag"]
    assert first.split() == ["2", "5", "s", "1", "1"]


def test_a_kept_segment_is_named(tmp_path: Path) -> None:
    clock = ManualClock()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        assert len(store.pull("orders", group="slow", timeout=0)) == 0
        store.put_many([b"x" * 100] * 1_000, topic="orders")
        clock.advance(timedelta(seconds=3 * 3_600))
        store.flush()
        text = " ".join(" ".join(section(lines_of(store), "pending")).split())
    assert "kept by group 'slow', which is behind in topic 'orders': 1,000 messages" in text


def test_names_are_shortened_and_rows_capped(tmp_path: Path) -> None:
    clock = ManualClock()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        for i in range(ROWS_MAX + 12):
            store.put(b"x", topic=f"{i}-" + "very-long-name-" * 6)
            assert len(store.pull(f"{i}-" + "very-long-name-" * 6, group="g" * 90, timeout=0)) == 1
        lines = section(lines_of(store), "group ")
    assert len(lines) == 1 + ROWS_MAX + 1
    assert "…" in lines[1] and lines[-1] == "… 12 more"


def test_a_notebook_shows_the_same(tmp_path: Path) -> None:
    """Escaped, and in the notebook's colours: black on white would be a hole in a dark one."""
    clock = ManualClock()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        body = b"<script>alert(1)</script>" + b"x" * 20_000
        id = store.put(
            body, topic="a", key="<k>", properties={"p": "<b>"}, delay=timedelta(hours=1)
        )
        store.put(b"x", topic="orphan")
        clock.advance(1)
        timer = store.get(id)
        assert timer is not None
        shown = [each._repr_html_() for each in (store.stats(), store.health(), timer)]
    assert "orphan" in shown[0] and "nobody reads" in shown[1] and "&lt;k&gt;" in shown[2]
    for html in shown:
        assert "<script" not in html and "<k>" not in html and "<b>" not in html
        assert len(html) < 10_000
        assert "color:inherit" in html and "background:none" in html and "#f" not in html
