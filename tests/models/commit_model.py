"""A model of group commit: some threads wait for an fsync that one of them makes.

Every atomic action is a step. `play` tries all orders of a small scene, and says whether anybody
returned before its bytes were durable, two led at once, or all who are left sleep for ever: here
nobody looks up by itself. `wrong` names a mistake, which `play` must find.
"""

from __future__ import annotations

from typing import NamedTuple

PUTTER, CHECKPOINT = "putter", "checkpoint"
WRONG = (
    "reads the round after it looked",
    "tells before it lets go",
    "is counted after it read the round",
    "reads the log's end after the fsync",
    "takes the lead without asking",
    "tells nobody",
)


class Thread(NamedTuple):
    """Where a thread is, and what it remembers."""

    kind: str
    at: str
    mine: int = 0
    round: int = 0
    taken: int = 0
    puts: int = 1


class Shared(NamedTuple):
    """The words that all see; `disk`: what is durable indeed."""

    end: int = 0
    disk: int = 0
    durable: int = 0
    leader: int = -1
    round: int = 0
    waiting: int = 0
    asking: int = 0
    failed: bool = False


State = tuple[Shared, tuple[Thread, ...]]


class FoundError(Exception):
    """Something that must not be."""


def step(state: State, i: int, wrong: str, fails: bool) -> list[State]:
    """Return the states after the next step of thread `i`; none where it sleeps or is done."""
    s, threads = state
    t = threads[i]

    def to(at: str, shared: Shared = s, **changes: int) -> State:
        return shared, (*threads[:i], t._replace(at=at, **changes), *threads[i + 1 :])

    def look(waits: str, leads: str) -> State:
        counted = s._replace(waiting=s.waiting - (t.at == "look again"))
        if s.durable >= t.mine:
            if s.disk < t.mine:
                raise FoundError("returned before it was durable")
            return to("put" if t.puts else "done", counted)
        if s.failed:
            return to("done", counted)
        if s.leader < 0 and not s.asking:
            return to(leads, counted)
        return to(waits)

    late = wrong == WRONG[0]
    uncounted = wrong == WRONG[2]
    match t.at:
        case "put":
            return [to("look", s._replace(end=s.end + 1), mine=s.end + 1, puts=t.puts - 1)]
        case "look":
            return [look("read round" if uncounted else "count", "ask")]
        case "count":
            counted = s._replace(waiting=s.waiting + 1)
            return [to("look again" if late or uncounted else "read round", counted)]
        case "read round":
            after = "sleep" if late else "count" if uncounted and t.round < 0 else "look again"
            return [to(after, round=s.round)]
        case "look again":
            return [look("read round" if late else "sleep", "ask")]
        case "sleep":
            if s.round == t.round:
                return [to("asleep")]
            return [to("look again" if late else "read round")]
        case "ask":  # `leading`
            free = s.asking == 0 or wrong == WRONG[4]
            return [to("try to lead" if free else "look")]
        case "try to lead":
            if s.leader < 0 or wrong == WRONG[4]:
                if s.leader >= 0:
                    raise FoundError("two lead at once")
                return [to("lead", s._replace(leader=i))]
            return [to("look")]
        case "lead":
            if s.durable >= t.mine or s.failed:
                return [to("let go")]
            return [to("fsync", taken=s.end)]
        case "fsync":
            if wrong == WRONG[3]:
                return [to("take", s._replace(disk=max(s.disk, t.taken)))]
            found = [to("say", s._replace(disk=max(s.disk, t.taken)))]
            return [*found, to("let go", s._replace(failed=True))] if fails else found
        case "take":
            return [to("say", taken=s.end)]
        case "say":
            said = s._replace(durable=max(s.durable, t.taken))
            return [to("tell at once" if t.kind == CHECKPOINT else "let go", said)]
        case "tell at once":
            return [tell(to("let go", s._replace(round=s.round + 1)))]
        case "let go":
            if s.leader != i:
                raise FoundError("two lead at once")
            if wrong == WRONG[1]:
                return [tell(to("only let go", s._replace(round=s.round + 1)))]
            return [to("new round", s._replace(leader=-1))]
        case "only let go":
            return [to("ended", s._replace(leader=-1))]
        case "new round":
            return [to("tell", s._replace(round=s.round + 1))]
        case "tell":
            after, somebody = to("ended"), s.waiting + s.asking
            return [tell(after) if somebody and wrong != "tells nobody" else after]
        case "ended":
            return [to("look" if t.kind == PUTTER else "done")]
        case "want":  # `alone`
            return [to("read round alone", s._replace(asking=s.asking + 1))]
        case "read round alone":
            return [to("try alone", round=s.round)]
        case "try alone":
            return [to("had it", s._replace(leader=i)) if s.leader < 0 else to("sleep alone")]
        case "sleep alone":
            return [to("asleep alone" if s.round == t.round else "read round alone")]
        case "had it":
            return [to("lead alone", s._replace(asking=s.asking - 1))]
        case "lead alone":
            return [to("fsync", taken=s.end) if not s.failed else to("let go")]
    return []


def tell(state: State) -> State:
    """Wake all who sleep."""
    woken = {"asleep": "read round", "asleep alone": "read round alone"}
    s, threads = state
    return s, tuple(t._replace(at=woken.get(t.at, t.at)) for t in threads)


def play(kinds: tuple[str, ...], *, puts: int = 1, wrong: str = "", fails: bool = False) -> int:
    """Try all orders; return how many states there are, raise FoundError for what must not be."""
    begin = {PUTTER: "put", CHECKPOINT: "want"}
    first = Shared(), tuple(Thread(kind, begin[kind], round=-1, puts=puts) for kind in kinds)
    seen, ahead = {first}, [first]
    while ahead:
        state = ahead.pop()
        after = [each for i in range(len(kinds)) for each in step(state, i, wrong, fails)]
        if not after and any(t.at != "done" for t in state[1]):
            raise FoundError("all who are left sleep for ever")
        new = set(after) - seen
        seen |= new
        ahead += new
    return len(seen)
