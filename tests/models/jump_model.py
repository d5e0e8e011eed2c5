"""The read cursor's jump as an executable model: `rules_model.py`, claiming a few slots at a time.

Slots cost nothing but what is due in them: if the read cursor stands at the claim cursor, all that
was claimed is passed, and nothing waits but in slots from the claim cursor on. So the read cursor
and the claim cursor go on together to the first slot that has units, at most to the clock's.
`RULES` are the design's; `WRONG` takes each away. `wrong_kernels.py` does so with the kernel.

jump    Only if the read cursor is the claim cursor: what was claimed and has not fired would be
        lost in a crash. Not over a slot with units.
"""

from tests.models import rules_model
from tests.models.rules_model import LEAD, P

SPAN = 3
RULES = {"jump": "the read cursor is the claim cursor"}
WRONG = [
    {"jump": "while something waits"},
    {"jump": "over units"},
]
SAME = [{"jump": "no"}]


class Store(rules_model.Store):
    """One random history."""

    def __init__(self, seed, **v):
        self.advancing = False
        super().__init__(seed, **(RULES | v))

    def advance(self):
        self.advancing = True
        super().advance()
        self.advancing = False

    def claim(self):
        if self.advancing:  # another service's: it comes later
            return
        self.jump()
        last = min(max(self.now // P, self.read_slot) + LEAD, self.read_slot + SPAN - 1)
        while self.claimed_slot <= last:
            for u in self.chain(self.claimed_slot):
                self.near[u] = 1
            self.claimed_slot += 1

    def jump(self):
        how = self.v["jump"]
        if how == "no" or (self.read_slot != self.claimed_slot and how != "while something waits"):
            return
        used = [h[0] for h in self.wheel if h and h[0] >= self.claimed_slot and how != "over units"]
        to = min([self.now // P, *used])
        if to > self.read_slot:
            self.info["jumps"] += 1
            self.read_slot, self.claimed_slot = to, max(self.claimed_slot, to)
