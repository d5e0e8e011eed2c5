"""A model of acknowledging with a put, over any crash at any step.

Messages 0, 1, … of one queue were handed out. Some are acknowledged by a put each, one plainly, a
checkpoint or two write what is known. Every atomic action is a step; `play` tries all orders, and
in each state every crash: the process alone, or the power with any part of the log that no fsync
has covered. What is opened then, opened again after a checkpoint of a life in which nobody read the
group, and once more, must say of each message: acknowledged if and only if its put is there.
`wrong` names a mistake, which `play` must find.
"""

from __future__ import annotations

from typing import NamedTuple

PLAIN, BY_PUT, CHECKPOINT = "plain", "by put", "checkpoint"
WRONG = (
    "leaves half a batch",
    "writes offsets before the log is durable",
    "covers what is under way",
    "is no longer under way before it settles",
    "settles before it appends",
    "reads what is covered last",
    "reads what is ahead last",
    "keeps nothing that is ahead",
    "forgets what nobody reads",
    "replaces what is ahead",
)
RECORD, PUT = "record", "put"


class FoundError(Exception):
    """Something that must not be."""


class File(NamedTuple):
    """`consumerOffset.json`, whose numbers only grow, whoever writes it."""

    committed: int = 0
    ahead: frozenset[int] = frozenset()
    covered: int = 0


class Shared(NamedTuple):
    """The log as it is in memory, how much of it is durable, what is settled, and the file."""

    log: tuple[tuple[str, int], ...] = ()
    durable: int = 0
    locked: bool = False
    done: frozenset[int] = frozenset()
    under_way: frozenset[tuple[int, int]] = frozenset()  # message, first record that may be its own
    file: File = File()


class Thread(NamedTuple):
    """What it does, with which message, where it is, what it remembers."""

    kind: str
    message: int
    at: str
    covered: int = 0
    ahead: frozenset[int] = frozenset()
    committed: int = 0


State = tuple[Shared, tuple[Thread, ...]]


def records(log: tuple[tuple[str, int], ...]) -> list[int]:
    """The messages that the log's records name."""
    return [message for kind, message in log if kind == RECORD]


def committed(done: frozenset[int]) -> int:
    """The first message that is not done."""
    return next(i for i in range(len(done) + 1) if i not in done)


def step(state: State, i: int, wrong: str) -> list[State]:
    """Return the states after the next step of thread `i`; none where it waits, or is done."""
    s, threads = state
    t = threads[i]

    def to(at: str, shared: Shared = s, **changes: object) -> list[State]:
        return [(shared, (*threads[:i], t._replace(at=at, **changes), *threads[i + 1 :]))]

    settled = s._replace(done=s.done | {t.message})
    ended = s._replace(under_way=frozenset(u for u in s.under_way if u[0] != t.message))
    match t.at:
        case "ack":
            return to("end", settled)
        case "begin":
            early = wrong == "settles before it appends"
            known = s.under_way | {(t.message, len(records(s.log)))}
            return to("settle" if early else "record", s._replace(under_way=known))
        case "record":
            if s.locked:
                return []
            entry = (RECORD, t.message)
            return to("put", s._replace(log=(*s.log, entry), locked=True))
        case "put":
            after = "leave" if wrong in WRONG[3:5] else "settle"
            entry = (PUT, t.message)
            return to(after, s._replace(log=(*s.log, entry), locked=False))
        case "settle":
            after = {WRONG[3]: "end", WRONG[4]: "record"}.get(wrong, "leave")
            return to(after, settled)
        case "leave":
            return to("settle" if wrong == WRONG[3] else "end", ended)
        case "covered":
            bounds = [] if wrong == "covers what is under way" else [u[1] for u in s.under_way]
            found = min(bounds, default=len(records(s.log)))
            return to({WRONG[5]: "sync", WRONG[6]: "committed"}.get(wrong, "ahead"), covered=found)
        case "ahead":
            found = frozenset(each for each in s.done if each > committed(s.done))
            if wrong == "keeps nothing that is ahead":
                found = frozenset()
            return to("sync" if wrong == WRONG[6] else "committed", ahead=found)
        case "committed":
            after = {WRONG[5]: "covered", WRONG[6]: "ahead"}.get(wrong, "sync")
            return to(after, committed=committed(s.done))
        case "sync":
            unsynced = wrong == "writes offsets before the log is durable"
            return to("write", s if unsynced else s._replace(durable=len(s.log)))
        case "write":
            ahead = t.ahead if wrong == "replaces what is ahead" else s.file.ahead | t.ahead
            last = max(s.file.committed, t.committed), ahead, max(s.file.covered, t.covered)
            return to("end", s._replace(file=File(*last)))
    return []


def recover(log: tuple[tuple[str, int], ...], file: File, wrong: str) -> tuple[Shared, File]:
    """Return what is there after opening, and the file that a life without readers writes."""
    if log and log[-1][0] == RECORD and wrong != "leaves half a batch":
        log = log[:-1]
    known = frozenset(records(log)[file.covered :]) | file.ahead
    done = frozenset(range(file.committed)) | known
    kept = file.ahead if wrong == "forgets what nobody reads" else known
    after = File(file.committed, kept, len(records(log)))
    return Shared(log, len(log), done=done, file=file), after


def check_crash(s: Shared, by_put: frozenset[int], wrong: str) -> None:
    """Open after each crash that can come now; judge what is found."""
    for length in range(s.durable, len(s.log) + 1):  # the last one: the process alone
        log, file = s.log[:length], s.file
        for _ in range(3):
            found, file = recover(log, file, wrong)
            log = found.log
            there = {message for kind, message in log if kind == PUT}
            for message in by_put:
                if (message in found.done) != (message in there):
                    what = "lost its put" if message in found.done else "comes again beside its put"
                    raise FoundError(f"message {message} {what}: {s}")


def play(kinds: tuple[str, ...], *, wrong: str = "") -> int:
    """Try all orders; return how many states there are, raise FoundError for what must not be.

    Each that acknowledges does so with a message of its own, in turn.
    """
    first_read = "ahead" if wrong == "reads what is covered last" else "covered"
    begin = {PLAIN: "ack", BY_PUT: "begin", CHECKPOINT: first_read}
    threads, message = [], 0
    for kind in kinds:
        threads.append(Thread(kind, message, begin[kind]))
        message += kind != CHECKPOINT
    by_put = frozenset(t.message for t in threads if t.kind == BY_PUT)
    first = Shared(), tuple(threads)
    seen, ahead = {first}, [first]
    while ahead:
        state = ahead.pop()
        check_crash(state[0], by_put, wrong)
        new = {each for i in range(len(kinds)) for each in step(state, i, wrong)} - seen
        seen |= new
        ahead += new
    return len(seen)
