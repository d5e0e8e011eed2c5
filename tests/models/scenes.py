"""Scenes of a few acts for the player of `interleaved.py`."""

from typing import NamedTuple

from tests.models.interleaved import NEVER, Act, Life, Plan
from timerstore.services.world.claims import FIRST_COUNT


class Scene(NamedTuple):
    """What callers do in one life; where one of them ends that, there is a life behind it.

    With a turn n the second caller does not rest, but stands by: it goes on where a wrong kernel
    pauses for the n-th time, and again where one pauses then.
    """

    callers: tuple[tuple[Act, ...], ...]
    before: tuple[Act, ...] = ()  # in a life before, which was killed
    stopped_ms: int = 0  # for how long nobody had the store open then
    power: bool = False  # where it ends, the power is cut


END: Act = ("end",)
REST: Act = ("rest",)
STAND_BY: Act = ("stand by",)
LINKED: tuple[Act, ...] = REST, ("tick", 500), REST
"""Behind a put that is far ahead: enqueue-get is not woken for it."""
SCENES: dict[str, Scene] = {
    "cancel against taking": Scene(
        ((("put", 0), ("put", 0)), (REST, ("cancel", 0), ("cancel", 1)))
    ),
    "cancel of what is due soon": Scene(
        (
            (("put", 30), ("put", 30), ("put", 60), REST, ("tick", 30)),
            (REST, ("cancel", 1), ("cancel", 0), ("cancel", 2)),
        )
    ),
    "claim against link": Scene(((REST, ("tick", 100)), (REST, ("put", 150), ("put", 150)))),
    "cancel at a slot's end": Scene(
        (
            (("put", 99), ("cancel", 0), REST, ("tick", 200)),
            (REST, ("cancel", 0), ("put", -1), ("cancel", 0)),
        )
    ),
    "cancel of what is overdue": Scene(
        (
            (("put", 0), REST, ("put", -150), REST, ("put", -150)),
            (REST, ("cancel", 0), ("cancel", 1)),
        )
    ),
    "cancel against a level": Scene(
        (
            (("level", 1), ("level", 1), REST, ("tick", 1_000)),
            (REST, ("cancel level", 0), ("cancel level", 1)),
        )
    ),
    "put at a level against its clock": Scene(
        ((("level", 1), REST, ("tick", 1_000)), (REST, ("tick", 2_600), ("level", 1)))
    ),
    "link against the read cursor": Scene(
        (
            (("put", -150), REST, ("put", -150), ("put", 0)),
            (REST, ("tick", 110), REST, ("flush",), END),
        )
    ),
    "the read cursor against a walk": Scene(
        ((("put", 250), ("put", 250), REST), (REST, ("tick", 300), REST, ("flush",), END))
    ),
    "link against a flush": Scene(
        ((("put", 250), REST, ("flush",), END), (REST, ("put", 150), ("put", 250)))
    ),
    "link against claim": Scene(
        ((("put", 150), ("put", 250), ("put", 170), REST), (REST, ("tick", 100), REST))
    ),
    "the read cursor far behind": Scene(
        ((("put", 30), ("tick", 30_000), ("put", 30), ("put", 420)),)
    ),
    "link against a jump": Scene(
        (
            (("put", 30), REST, ("tick", 12_000), REST, ("put", 30), ("flush",), END),
            (REST, ("put", -10_000), ("put", -5_000)),
        )
    ),
    "jumps": Scene(
        (
            (
                *(("put", 30), ("put", 1_900), ("put", 2_600), *LINKED, ("tick", 9_000), REST),
                *(("put", 30), ("tick", 90_000), ("put", 30), ("put", 420)),
            ),
        )
    ),
    "a clock that falls": Scene(((("level", 1), ("level", 2), REST, ("tick", -4_000)),)),
    "a level's cancel that is held": Scene(
        (
            (
                *(("tick", 950), ("level", 1), ("tick", -950), ("level", 1), ("cancel level", 0)),
                *(REST, ("tick", 1_150), REST, ("tick", 60)),
            ),
        )
    ),
    "a level's cancel that is held, flush": Scene(
        (
            (
                *(("tick", 950), ("level", 1), ("tick", -950), ("level", 1), ("cancel level", 0)),
                *(REST, ("tick", 1_150), REST, ("tick", 60), ("flush",), END),
            ),
        )
    ),
    "flush against the read cursor": Scene(
        (
            (("put", 30), ("put", 60), REST, ("tick", 80), REST, ("tick", 60), REST),
            (REST, ("flush",), END),
        )
    ),
    "flush against a level": Scene(
        ((("level", 1), ("level", 1), REST, ("tick", 1_000), REST), (REST, ("flush",), END))
    ),
    "a level, power in a flush": Scene(
        ((("level", 1), REST, ("tick", 1_000), REST, REST, ("flush",)), (REST, END)), power=True
    ),
    "hop, flush": Scene(
        ((("put", 2_600), *LINKED, ("tick", 500), REST, ("flush",), END),),
    ),
    "flush against a hop": Scene(
        ((("put", 2_600), *LINKED, ("tick", 500), REST, ("flush",), END), (REST, ("tick", 160)))
    ),
    "the read cursor against a hop": Scene(
        (
            (("put", 2_600), *LINKED, ("tick", 500), REST),
            (REST, ("tick", 200), REST, ("flush",), END),
        )
    ),
    "reschedule against put": Scene(
        ((("put", 250), ("reschedule", 0, 420)), (REST, ("put", 30), END))
    ),
    "owed, link": Scene(
        ((REST, ("put", 30), ("put", -150)), (REST, ("put", 30))),
        before=(("put", 30), ("put", 30), ("put", 150)),
        stopped_ms=450,
    ),
    "owed, an overdue put": Scene(
        ((REST, ("tick", 110), REST, ("tick", 110)), (REST, ("put", -300), ("put", -20))),
        before=(("put", 30), ("put", 150)),
        stopped_ms=450,
    ),
    "owed, cancel": Scene(
        ((REST, ("tick", 30)), (REST, ("cancel", 0), ("cancel", 1), ("cancel", 2))),
        before=(("put", 30), ("put", 30), ("put", 150)),
        stopped_ms=450,
    ),
    "owed, flush": Scene(
        ((("put", 0), ("put", 30), REST, ("tick", 110), REST), (REST, ("flush",), END)),
        before=(("put", 30), ("put", 150), ("put", 250)),
        stopped_ms=450,
    ),
    "owed, a roll and its delete": Scene(
        ((("cancel", 0), REST, ("tick", 600), REST, ("tick", 600)), (REST, ("flush",), END)),
        before=(("put", 1_100), ("put", 150)),
        stopped_ms=1_000,
    ),
}


def scene(name: str, turn: int = 0, cut: int = 0) -> Plan:
    """Return a scene, for a turn as `Scene` says; at a cut the second caller goes before others."""
    (first, *others), acts_before, stopped_ms, power = SCENES[name]
    if turn:
        others = [tuple(STAND_BY if act == REST else act for act in acts) for acts in others]
        others = [(*(STAND_BY,) * (turn - 1), *acts) for acts in others]
    callers = first, *others
    ends = any(END in acts for acts in callers)
    cuts = ((cut, "caller 1"),) if cut else ()
    lives = [Life(callers, (), cuts, NEVER * ends, power=power, stopped_ms=stopped_ms)]
    if acts_before:
        lives.insert(0, Life(((*acts_before, END),), (), ends_at=NEVER))
    if ends:
        lives.append(Life((), ()))
    return Plan(tuple(lives), group=power, first_count=0 if acts_before else FIRST_COUNT)
