"""A slow, obvious twin of the cancelled set: a dict with the deletes of those that are held."""

OURS = -1
LEVEL_MARK = 1 << 47

Identity = tuple[int, int]


class CancelledTwin:
    """Who was cancelled: identity, and the delete's offset where it is held, else None."""

    def __init__(self) -> None:
        self.held: dict[Identity, int | None] = {}
        self.held_from: int | None = None

    @staticmethod
    def is_of_level(identity: Identity) -> bool:
        return identity[0] == OURS and identity[1] >= LEVEL_MARK

    def add(self, identity: Identity) -> bool:
        """Only who knows that it is not held adds it."""
        new = identity not in self.held
        self.held.setdefault(identity, None)
        return new

    def add_held(self, identity: Identity, delete: int) -> bool:
        if identity in self.held:
            return False
        self.held[identity] = None
        self.pass_delete(identity, delete)
        return True

    def pass_delete(self, identity: Identity, delete: int) -> None:
        if not self.is_of_level(identity):
            self.remove(identity)
        elif identity in self.held and self.held[identity] is None:
            self.held[identity] = delete
            self.held_from = delete if self.held_from is None else min(self.held_from, delete)

    def remove(self, identity: Identity) -> bool:
        """The oldest delete is forgotten with the last that is held, and not before."""
        there = identity in self.held
        self.held.pop(identity, None)
        if all(delete is None for delete in self.held.values()):
            self.held_from = None
        return there

    def level_count(self) -> int:
        return sum(self.is_of_level(identity) for identity in self.held)

    def held_count(self) -> int:
        return sum(delete is not None for delete in self.held.values())
