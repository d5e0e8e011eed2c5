"""What a program was told of its calls, compared with a log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from timerstore.testing.ledger import Ledger, Root, check_none


class Account:
    """What a program was told of its calls, over all its lives.

    It is told in lines: a word, the thread, the number of the call, then ids or names.
    """

    def __init__(self) -> None:
        self.put: set[str] = set()
        self.cancelled: set[str] = set()
        self.late: set[str] = set()
        self.unsure: set[str] = set()
        """Their cancelling had begun, and nobody heard the answer."""
        self.got: set[str] = set()
        self.keys: set[tuple[str, str]] = set()
        """What was cancelled by key, if anything was there."""
        self.durability = "group"
        self._may_lose: list[dict[str, list[tuple[str, str]]]] = []
        """Of each thread of a life that ended in a power cut: what it did, by call."""

    def take(self, lines: Iterable[str], *, power: bool = False) -> None:
        """Enter the lines of a life, which ended in a power cut or not."""
        asked: Counter[str] = Counter()
        acts: dict[str, dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
        for line in lines:
            word, thread, call, *names = line.split()
            done = acts[thread][call]
            if word == "durability":
                self.durability = names[0]
            elif word == "put":
                self.put.update(names)
                done += [("put", id) for id in names]
            elif word == "cancelling":
                asked.update(names)
            elif word in ("cancelled", "moved"):
                gone = names if word == "cancelled" else names[:1]
                self.cancelled.update(gone)
                asked.subtract(gone)
                done += [("cancelled", id) for id in gone]
                if word == "moved":
                    self.put.add(names[1])
                    done.append(("put", names[1]))
            elif word == "late":
                self.late.update(names)
                asked.subtract(names)
            elif word == "got":
                self.got.update(names)
            elif word == "key":
                self.keys.add((names[0], bytes.fromhex(names[1]).decode()))
        self.unsure.update(+asked)
        self._may_lose += acts.values() if power else []

    def lose_power(self, ledger: Ledger) -> list[str]:
        """Forget what a power cut may take under "process": of each thread what came last.

        Returns what is wrong: something is there, and an earlier act of its thread is not.
        """
        may_lose, self._may_lose = self._may_lose, []
        if self.durability == "group":
            return []
        roots, found = ledger.by_id(), list[str]()
        for acts in may_lose:
            lost = ""
            for done in acts.values():
                there = [id for word, id in done if _is_there(roots.get(id), word)]
                if lost and there:
                    found.append(f"{there[0]} is there, and {lost}, which came before, is lost")
                for word, id in done:
                    if not _is_there(roots.get(id), word):
                        lost = lost or id
                        (self.put if word == "put" else self.cancelled).discard(id)
                        self.unsure.add(id)
        self.got.clear()  # they may come again
        self.late.clear()
        return found

    def faults(self, ledger: Ledger) -> list[str]:
        """Return what the program was told, and is not so."""
        roots = ledger.by_id()
        found = [f"{id} was put, and is lost" for id in sorted(self.put - roots.keys())]
        for id in self.cancelled & roots.keys():
            if not roots[id].deleted:
                found.append(f"{roots[id]} was cancelled, and is still to come")
        for id in self.got & roots.keys():
            if not roots[id].fired_ms:
                found.append(f"{roots[id]} was handed out, and its firing is lost")
        for id in self.late & roots.keys():
            if roots[id].pending:
                found.append(f"{roots[id]} was too late to cancel, and still waits")
        replaced = {root.replaces for root in roots.values() if root.replaces}
        for id in replaced & roots.keys():
            if not roots[id].deleted:
                found.append(f"{roots[id]} was rescheduled, and still waits")
        asked = self.cancelled | self.unsure | replaced
        for root in roots.values():
            if root.deleted and root.key not in asked:
                if (root.topic, root.user_key) not in self.keys:
                    found.append(f"{root} was cancelled, and nobody asked for that")
            # The ledger itself allows for a clock that goes back.
            if any(fired < root.due_ms for fired in root.fired_ms):
                found.append(f"{root} came early")
        return found

    def check(self, ledger: Ledger) -> None:
        """Raise AssertionError if there are faults."""
        check_none(self.faults(ledger))


def _is_there(root: Root | None, word: str) -> bool:
    """Tell whether a log knows of a put, or of a cancel."""
    return root is not None and (word == "put" or root.deleted)
