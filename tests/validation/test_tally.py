"""Merging tallies: in any order, any way, the same."""

from hypothesis import given
from hypothesis import strategies as st

from timerstore.audit.rule import Example
from timerstore.validation.facts import EXAMPLES_MAX, Evidence

RULES = st.sampled_from(["chain", "once"])
OFFSETS = st.lists(st.integers(0, 60), min_size=1, max_size=30, unique=True)


@st.composite
def tallies(draw: st.DrawFn) -> Evidence:
    tally = Evidence()
    for rule, offsets in draw(st.dictionaries(RULES, OFFSETS)).items():
        tally.check(rule, len(offsets) + 5)
        examples = [Example("f", offset, "r") for offset in offsets]
        tally.fail(rule, len(offsets), examples, torn=draw(st.booleans()))
    tally.counts.update(draw(st.dictionaries(st.sampled_from("ab"), st.integers(1, 9))))
    low = draw(st.integers(0, 9))
    tally.queues = {"q": (low, low + 3, 4)}
    return tally


def merged(*parts: Evidence) -> Evidence:
    total = Evidence()
    for part in parts:
        total.merge(part)
    return total


@given(tallies(), tallies(), tallies())
def test_order_does_not_matter(a: Evidence, b: Evidence, c: Evidence) -> None:
    assert merged(a, b, c) == merged(c, b, a) == merged(merged(a, b), c) == merged(a, merged(b, c))


@given(st.lists(tallies(), max_size=4))
def test_examples_are_the_first(parts: list[Evidence]) -> None:
    total = merged(*parts)
    for kind in ("failed", "mended"):
        places, mine = getattr(total, kind), [getattr(part, kind) for part in parts]
        for rule, examples in places.examples.items():
            every = sorted(each for part in mine for each in part.examples.get(rule, []))
            assert examples == every[:EXAMPLES_MAX]
            assert places[rule] == sum(part[rule] for part in mine)
