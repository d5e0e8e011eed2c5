"""What is documented of metrics, against what is exported: the page, its alerts, the dashboard."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest

from tests.markdown import ROOT
from tests.rigs.program import python
from tests.rigs.warm import Warm
from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore, metrics
from timerstore.testing.disk import QuietDisk

prometheus_client = pytest.importorskip("prometheus_client")

PAGE = (ROOT / "docs" / "metrics.md").read_text()
DASHBOARD = json.loads((ROOT / "docs" / "grafana.json").read_text())


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What a store exports that has a bit of everything."""
    clock, registry = ManualClock(), prometheus_client.CollectorRegistry()
    path = tmp_path_factory.mktemp("metrics") / "s"
    with TimerStore(path, config=SMALL, clock=clock, disk=QuietDisk()) as store:
        metrics.register(store, registry)
        store.put_many([b"x"] * 4, topic="t", delay_ms=1_000)
        store.put_many([b"x"] * 4, topic="orphan", delay_ms=1_000)
        store.put(b"x", topic="t", delay_level=1)
        clock.advance(timedelta(seconds=2))
        store.pull("t", group="g", max_count=2, timeout=0).ack()
        store.follow(path.with_name("copy")).close()
        return list(registry.collect())


def exported(families: list[Any]) -> dict[str, tuple[str, str]]:
    """Type and labels by name, as the page has them."""
    found = {}
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = sorted({label for each in family.samples for label in each.labels} - {"le"})
        found[name] = family.type, ", ".join(labels)
    return found


def samples(families: list[Any]) -> set[str]:
    return {sample.name for family in families for sample in family.samples}


def test_the_page_has_every_metric(families: list[Any]) -> None:
    parts = re.findall(r"^<!-- made: metrics (\w+) -->$", PAGE, re.MULTILINE)
    program = ROOT / "docs" / "hooks" / "made.py"
    table = "\n".join(python(program, "metrics", part, timeout_s=60, popen=Warm) for part in parts)
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ?([\w, ]*?) ?\| (.+) \|$", table, re.MULTILINE)
    assert len(rows) == len({name for name, *_ in rows})
    told = {
        name: (kind, ", ".join(sorted(filter(None, labels.split(", ")))))
        for name, kind, labels, _ in rows
    }
    assert told == exported(families)


def test_alerts_name_what_is_exported(families: list[Any]) -> None:
    alerts = PAGE.split("## Alerts")[1]
    names = set(re.findall(r"timerstore_\w+", alerts))
    assert names and names <= samples(families) | exported(families).keys()
    kinds = set(re.findall(r"^\| (\w+) \| `", alerts, re.MULTILINE))
    assert kinds == {"late", "behind", "disk", "stopped"}


def expressions() -> list[str]:
    targets = (target for panel in DASHBOARD["panels"] for target in panel.get("targets", ()))
    return [target["expr"] for target in targets]


def test_the_dashboard_asks_for_what_is_exported(families: list[Any]) -> None:
    names = set(re.findall(r"timerstore_\w+", " ".join(expressions())))
    variables = [each["query"] for each in DASHBOARD["templating"]["list"]]
    names |= set(re.findall(r"timerstore_\w+", str(variables)))
    assert len(names) > 20 and names <= samples(families)


def test_the_dashboard_groups_by_labels_that_are_there(families: list[Any]) -> None:
    labels_of: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            labels_of.setdefault(sample.name, set()).update(sample.labels)
    for expression in expressions():
        assert expression.count("(") == expression.count(")")
        assert expression.count("{") == expression.count("}") and "{}" not in expression
        (wanted,) = re.findall(r"by \(([\w, ]+)\)", expression) or [""]
        for name in re.findall(r"timerstore_\w+", expression):
            assert set(filter(None, wanted.split(", "))) <= labels_of[name], expression


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        columns = range(at["x"], at["x"] + at["w"])
        cells = {(x, y) for x in columns for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells
