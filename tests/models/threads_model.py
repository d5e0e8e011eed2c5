"""The pipeline as service threads: its protocol, executable, for whoever builds the kernels.

A service is a generator; what stands between two `yield`s is one atomic action, and `yield
condition` sleeps until that holds. `tests/models/threads_play.py` plays random histories with kills
and power cuts, and all interleavings of small scenes. Each rule of `WRONG` can be taken away; then
the oracle (`check`, and `threads_play.judge` at the end) finds what goes wrong.

    put → timer queue → enqueue-get → ring A → enqueue-put → wheel, timer log
                                                    ↓ ring B: units of slots that are claimed
              commit log ← dequeue-put ← ring C ← dequeue-get
              commit log ← deliver-levels ← level queue ← put at a level

Who owns what. `Words` refuses a write by anybody but its owner; a ring has one producer, one
consumer.

    enqueue-get      fetched_index; ring A's tail
    enqueue-put      linked_index (Q), late[], straggler; units, slots, the timer log's end; ring
                     B's tail
    dequeue-get      near, deletes, claimed_slot (C), claim_at, walked_slot, the same three of what
                     was put aside, chained[]; ring C's tail
    dequeue-put      passed_slot (R), front_slot, front_copy, settled[], first_copy[], roll_index[],
                     rolls_before, frontier
    deliver-levels   offset
    flush            checkpointed_slot
    the fire lock    cancelled, held, held_from: whoever has it may write
    a need           set by a service's step, cleared by its own thread

Locks, in this order: *gil*, *fire*, *near*, *wheel*; the append lock, here one action, inside any
of them. Each is held for one bounded step. Services take no gil; callers wait for fire with it.

    fire    a look into the cancelled set, the append, and its settling are one: dequeue-put,
            deliver-levels, cancel and reschedule hold it. Captured with it: R, Q, L, level offsets.
    near    dequeue-get's own words, for who looks for a timer in them.
    wheel   slots, units and Q against C and R: enqueue-put reads C and R anew for each unit;
            dequeue-get reads a slot's head and moves C at once; dequeue-put moves R.

The steps.

- Enqueue-put writes unit, slot, late (where slot < C), then Q, and only then ring B's tail.
- Dequeue-get empties ring B first. It claims a slot, walks its chain afterwards, and says so in
  walked_slot. It takes what is due; once a slot has ended, was walked whole, and nothing of it or
  before it is near, the slot's plain deletes follow through ring C.
- Dequeue-put settles a batch of ring C. A delete takes its target out of the set, after `frontier`
  was raised to its slot's end; one of a level's message that still waits is *held* instead.
- R passes a slot that has ended, was walked whole, whose units are all settled (late + chained =
  settled: cumulative, never cleared), with Q behind all rolls of slots before it, and which is less
  than the wheel's length ahead of the durable R.
- What ended before a life began is put aside: slots in [R, aside_stop), a second range that
  dequeue-get claims, walks and takes beside the front, which begins there. The front passes its
  slots by itself; R joins it once it has come to aside_stop. Until then the front's first copies
  count for L, its plain deletes are kept (their target may be a roll that was put aside), and a
  unit whose slot the front has passed, but R has not, is a straggler: the front's slot stands in
  for its own, and R joins only behind that.
- Deliver-levels copies in the order of arrival; its offset moves within the same hold of fire.
  A message that lies further ahead than a level and a second is due at once, for the clock went
  back. So the queue's end is read before the clock: what lies before that end was put at an earlier
  clock.
- What a service lacks (a segment, a mapping, a row) is made by its own thread, in Python, which may
  take any time. What its step has done until then is settled; it gives its locks back, for who has
  the GIL may wait for them; and nobody runs its step before that was answered.
- Cancel says True where the due time is after frontier and R, or the index is not linked, or, of a
  level, not before the offset. Else it takes all three locks and looks where a timer can wait: the
  unlinked, near, rings B and C, half-claimed chains, slots that are not claimed. Reschedule is
  cancel with the new timer and the delete under one append; recovery mends one that was torn by a
  power cut.
- Flush captures R, Q, L, level offsets and all ends at one instant, under fire and wheel. Pages are
  copied later, piecewise; so the timer log is synced up to its end after the last piece. L is the
  oldest copy of a slot that R has not passed, of an earlier life whose slots it has not, and the
  oldest delete that is held.
- Helping: a service's step, which keeps nothing over its end but words, is run by any service
  thread that gets its token; tokens are tried, never waited for (`wake_model.py` says how). A
  thread whose own input is empty runs the next one's step.

Not modelled: retention, handover, several levels (each is a loop like this one), torn reads of more
words than one. A level's message that a broker wrote differs in how long its level was, which is
read from it and is no other thread's to change. Here a thread that could act is never asleep:
that it is woken is shown in `wake_model.py`.
"""

from tests.models.threads_dequeue import DequeueGet
from tests.models.threads_store import (
    BATCH,
    CELLS,
    CHAIN,
    FAR,
    KEPT,
    LEVEL_MS,
    NONE,
    PRECISION_MS,
    RING,
    SLACK_MS,
    SLOTS,
    SPAN,
    Message,
    Steps,
    Unit,
    check,
)


class Pipeline(DequeueGet):
    """A store with its services, its callers and its flush."""

    # --- the services' threads

    def has_work(self, name: str) -> bool:
        """Whether a service's step would do anything; read without a lock."""
        return not self.needs[name] and bool(getattr(self, f"{name}_has_work")())

    def service_thread(self, mine: str, helps: bool = True) -> Steps:
        """Run a service's step whenever there is work, and help the services behind it.

        Here even around: the last one helps the first. The kernels need not.
        """
        behind: tuple[str, ...] = (mine,)
        if helps and mine in CHAIN:
            behind = CHAIN[CHAIN.index(mine) :] + CHAIN[: CHAIN.index(mine)]
        while True:
            yield lambda: self.needs[mine] or (self.has_work(mine) and not self.tokens[mine])
            if self.needs[mine]:
                yield from self.answer(mine)
                continue
            for name in behind:
                if self.tokens[name] or not self.has_work(name):
                    continue
                if not self.right("tokens are looked at, then taken"):
                    yield None
                self.tokens[name] = True
                yield from self.acting(name, getattr(self, f"{name}_step")())
                self.tokens[name] = False
                yield None
                if self.has_work(mine):
                    break  # one's own work goes first

    def acting(self, owner: str, steps: Steps) -> Steps:
        """Run somebody's steps in that one's name: only its own words may be written."""
        while True:
            self.writer = owner
            try:
                condition = next(steps)
            except StopIteration as end:
                return end.value
            finally:
                self.writer = "nobody"
            yield condition

    # --- enqueue-get

    def enqueue_get_has_work(self) -> bool:
        """Something is not fetched, and ring A has room."""
        return self.enqueue_get.fetched_index < len(self.timer_queue) and len(self.ring_a) < RING

    def enqueue_get_step(self) -> Steps:
        """Fetch entries of the timer queue into ring A. No lock."""
        own = self.enqueue_get
        for _ in range(BATCH):
            if not self.enqueue_get_has_work() or self.lacks("enqueue_get"):
                break
            entry = self.timer_queue[own.fetched_index]
            yield None
            self.ring_a.append(entry)
            own.fetched_index += 1

    # --- enqueue-put

    def enqueue_put_has_work(self) -> bool:
        """Something was fetched, and a late arrival would have room in ring B."""
        return bool(self.ring_a) and len(self.ring_b) < RING

    def enqueue_put_step(self) -> Steps:
        """Give each fetched message its unit. Under wheel."""
        own, claimed, passed = (
            self.enqueue_put,
            self.dequeue_get.claimed_slot,
            self.dequeue_put.passed_slot,
        )
        yield from self.take("wheel")
        for _ in range(min(BATCH, len(self.ring_a))):
            if self.right("C is read before wheel"):
                claimed = self.dequeue_get.claimed_slot
            if self.right("R is read before wheel"):
                passed = self.dequeue_put.passed_slot
            slot, rolls = self.place(self.ring_a[0], passed)
            near, aside = self.near_slot(slot)
            late = near < (self.dequeue_get.aside_claimed_slot if aside else claimed)
            late = late or near > slot
            if (late and len(self.ring_b) == RING) or self.lacks("enqueue_put"):
                break
            unit = self.write_unit(self.ring_a[0], slot, rolls)
            yield None
            self.wheel[slot % CELLS] = (slot, unit)
            own.late[near % SPAN + SPAN * aside] += late
            if near > slot:
                own.straggler = near
            self.ring_a.pop(0)
            yield None
            in_order = self.right("Q after ring B")
            own.linked_index += in_order
            yield None
            if late:
                self.ring_b.append(unit)
                yield None
            own.linked_index += not in_order
        self.give("wheel")

    # --- dequeue-put

    def can_pass(self, kind: str, slot: int) -> bool:
        """Whether a range of slots may begin one later: the front, or R in what was put aside."""
        own, get, put = self.dequeue_put, self.dequeue_get, self.enqueue_put
        place = slot % SPAN + SPAN * bool(kind)
        walked = self.right("R passes what is claimed, not walked")
        whole = getattr(get, kind + ("walked_slot" if walked else "claimed_slot"))
        near = slot < self.flush.checkpointed_slot + SLOTS
        joins = True
        if kind and slot + 1 == own.aside_stop:
            joins = own.front_slot > put.straggler or not self.right("R leaves stragglers behind")
            kept = put.late[KEPT] + get.chained[KEPT] == own.settled[KEPT]
            joins &= kept or not self.right("R leaves kept deletes behind")
        return (
            self.now // PRECISION_MS > slot
            and slot < whole
            and put.late[place] + get.chained[place] == own.settled[place]
            and put.linked_index >= own.rolls_before
            and (near or not self.right("R outruns the checkpoint"))
            and joins
        )

    def dequeue_put_has_work(self) -> bool:
        """Something was taken, or R can move."""
        return bool(self.ring_c) or any(self.can_pass(*each) for each in self.bases())

    def judge(self, unit: Unit) -> tuple[str, int]:
        """Return what becomes of a unit, and up to when that is known. Under fire.

        A kind to copy it as, or `drop`, or `forget`.
        """
        m = self.log[unit.message]
        if m.kind == "delete" and not unit.rolls:
            ends = self.right("frontier ignores deletes")
            return "forget", (unit.slot + ends) * PRECISION_MS - 1
        if m.kind == "timer" and m.id in self.fire.cancelled:
            return "drop", unit.slot * PRECISION_MS
        if unit.rolls and (m.kind == "delete" or m.due > self.now):
            return m.kind, unit.slot * PRECISION_MS
        check(m.due <= self.latest, "fired early")
        return "fired", m.due

    def dequeue_put_step(self) -> Steps:
        """Settle a batch of ring C, then move R. Under fire; for R under wheel."""
        if self.ring_c:
            yield from self._settle_batch()
        for kind, slot in self.bases():
            if self.can_pass(kind, slot):  # a look without the lock
                yield from self._pass_slot(kind)

    def _settle_batch(self) -> Steps:
        own = self.dequeue_put
        early, late = self.right("set is read before fire"), self.right("settles after fire")
        yield from self.take(*(("fire",) if early else ()))
        units, places = [unit for unit, _ in self.ring_c[:BATCH]], [at for _, at in self.ring_c]
        judged, copies = [self.judge(self.units[unit]) for unit in units], []
        yield None
        yield from self.take(*(() if early else ("fire",)))
        for unit, (kind, _) in zip(units, judged, strict=True):
            m, copy = self.log[self.units[unit].message], FAR
            if kind not in ("drop", "forget"):
                if self.lacks("dequeue_put"):
                    if self.right("needs are answered under fire"):
                        break
                    yield from self.answer("dequeue_put")
                copy = self.append(m._replace(kind=kind, origin=self.units[unit].message))
                yield None
            copies.append(copy)
        if self.right("what was not appended is settled"):
            units, judged = units[: len(copies)], judged[: len(copies)]
        copies += [FAR] * (len(units) - len(copies))
        self.give(*(() if late else ("fire",)))
        own.frontier = max([own.frontier, *(ms for _, ms in judged)])
        yield None
        for unit, i, (kind, _), copy in zip(
            units, places[: len(units)], judged, copies, strict=True
        ):
            m = self.log[self.units[unit].message]
            own.first_copy[i] = min(own.first_copy[i], copy)
            if kind in ("timer", "delete") and copy != FAR:
                own.roll_index[i] = self.timer_queue.index(copy) + 1
            if kind == "forget":
                self._forget(m, self.units[unit].message)
                yield None
            self.settled_units.add(unit)
            self.ring_c.pop(0)
            own.settled[i] += 1
            yield None
        self.give(*(("fire",) if late else ()))

    def _forget(self, delete: Message, offset: int) -> None:
        """Take a delete's target out of the set; hold that of a level's message that waits."""
        fire = self.fire
        of_level = self.log[delete.id].kind == "level"
        if of_level and delete.id in fire.cancelled and self.right("held deletes are forgotten"):
            fire.held |= {delete.id}
            fire.held_from = min(fire.held_from, offset)
        else:
            fire.cancelled -= {delete.id}

    def _pass_slot(self, kind: str) -> Steps:
        own, locks = self.dequeue_put, self.unless("R moves without wheel", "wheel")
        yield None
        yield from self.take(*locks)
        slot = own.passed_slot if kind else own.front_slot
        judged = not self.right("R is judged before wheel")
        if (not kind or self.is_aside()) and (judged or self.can_pass(kind, slot)):
            place, aside = slot % SPAN + SPAN * bool(kind), self.is_aside()
            yield None
            own.rolls_before = max(own.rolls_before, own.roll_index[place])
            if aside and not kind and self.right("L forgets what went before"):
                own.front_copy = min(own.front_copy, own.first_copy[place])
            own.first_copy[place], own.roll_index[place] = FAR, 0  # for slot + SPAN
            if not kind:
                own.front_slot = slot + 1
            if not (aside or kind) or not self.right("R passes what was put aside"):
                self._move_passed(own.front_slot)
            elif kind and slot + 1 == own.aside_stop:
                self._move_passed(own.front_slot)
                own.front_copy = FAR
            elif kind:
                self._move_passed(slot + 1)
        self.give(*locks)

    def _move_passed(self, slot: int) -> None:
        mine = {unit for unit, entry in enumerate(self.units) if entry.slot < slot}
        mine -= self.passed_before
        check(mine <= self.settled_units, "R passes what is not settled")
        self.dequeue_put.passed_slot = slot

    # --- deliver-levels

    def level_is_due(self, message: int, now: int) -> bool:
        """Whether a level's message is due; it is where the clock went back behind its put."""
        due = self.log[message].due
        slack = SLACK_MS if self.right("levels clamp without slack") else 0
        clamps = self.right("levels wait for a clock that went back")
        return due <= now or (clamps and due > now + LEVEL_MS + slack)

    def deliver_levels_has_work(self) -> bool:
        """The level's first message is due."""
        heads = self.level_queue[self.deliver_levels.offset :][:1]
        due = any(self.level_is_due(message, self.now) for message in heads)
        return due and not self.level_stalls

    def deliver_levels_step(self) -> Steps:
        """Copy what is due of the level, in the order of arrival. Under fire.

        Whatever was put before the clock is read was put at an earlier one, unless that went back.
        """
        own, fire, locks = (
            self.deliver_levels,
            self.fire,
            self.unless("levels without fire", "fire"),
        )
        now = self.now
        in_time = self.right("level offset after fire")
        yield from self.take(*locks)
        offset, end, outcomes, done = own.offset, len(self.level_queue), [], 0
        yield None
        if self.right("a level's clock is read before its end"):
            now = max(now, self.now)
        else:
            end = len(self.level_queue)
        for message in self.level_queue[offset : min(end, offset + BATCH)]:
            if not self.level_is_due(message, now):
                break
            outcomes.append((message, message in fire.cancelled))
        yield None
        for message, dropped in outcomes:
            if not dropped and message not in self.done:
                if self.lacks("deliver_levels"):
                    break
                m = self.log[message]
                clamped = message in self.clamped
                check(m.due <= self.latest or clamped, "a level's message came early")
                self.append(m._replace(kind="fired", origin=message))
                yield None
            done += 1
        if self.right("levels pass what was not appended"):
            del outcomes[done:]
        self.give(*(() if in_time else locks))
        yield None
        own.offset = offset + len(outcomes)
        for message, dropped in outcomes:
            if dropped:
                fire.cancelled -= {message}
                fire.held -= {message}
                if not fire.held:
                    fire.held_from = FAR
        self.give(*(locks if in_time else ()))

    # --- callers

    def put(self, due: int) -> Steps:
        """Put a timer; durable on return."""
        yield from self._append_durably(Message("timer", NONE, due))

    def put_at_level(self) -> Steps:
        """Put a message at the delay level; durable on return."""
        due = self.now + LEVEL_MS
        yield None
        yield from self._append_durably(Message("level", NONE, due))

    def _append_durably(self, *messages: Message) -> Steps:
        end = self.append(*messages) + len(messages)
        yield None
        self.acked = max(self.acked, end)
        yield None

    def waits(self, id: int) -> bool:
        """Look for an overdue timer in each place where one can wait. Under all three locks."""
        get, own = self.dequeue_get, self.enqueue_put
        units = [entry[1] for entry in get.near]
        units += self.ring_b if self.right("cancel passes ring B by") else []
        units += [unit for unit, _ in self.ring_c] if self.right("cancel passes ring C by") else []
        ahead = [*range(get.claimed_slot, self.flush.checkpointed_slot + CELLS)]
        starts = [get.claim_at]
        if self.is_aside() and self.right("cancel passes what was put aside by"):
            ahead += range(get.aside_claimed_slot, self.dequeue_put.aside_stop)
            starts.append(get.aside_claim_at)
        for first in (*starts, *map(self.head, ahead)):
            units += self.chain(first)
        messages = self.timer_queue[own.linked_index :] + [self.units[u].message for u in units]
        timers = (m for m in messages if m not in self.done and self.log[m].kind == "timer")
        return any(self.log[m].id == id for m in timers)

    def may_cancel(self, id: int) -> Steps:
        """Return whether a timer waits and is not cancelled. Under fire."""
        m, passed = self.log[id], self.dequeue_put.passed_slot
        frontier = max(self.dequeue_put.frontier, passed * PRECISION_MS - 1)
        yield None
        if id in self.fire.cancelled:
            return False
        if m.kind == "level":
            waits = self.level_queue.index(id) >= self.deliver_levels.offset
        else:
            linked = self.enqueue_put.linked_index
            waits = m.due > frontier or self.timer_queue.index(id) >= linked
            if not waits:
                yield from self.take("near", "wheel")
                waits = self.waits(id)
                self.give("near", "wheel")
        gone = any(each.id == id and each.kind in ("fired", "delete") for each in self.log)
        check(waits or gone, "False of what waits")
        return waits

    def cancel(self, id: int) -> Steps:
        """Cancel a timer, or a level's message; durable on return."""
        yield from self.take("gil", "fire")
        self.give("gil")
        if (yield from self.may_cancel(id)):
            self.fire.cancelled |= {id}
            yield None
            yield from self._append_durably(Message("delete", id, self.log[id].due))
        self.give("fire")

    def reschedule(self, id: int, due: int) -> Steps:
        """Move a timer: the new one with the delete of the old; durable on return."""
        yield from self.take("gil", "fire")
        self.give("gil")
        if (yield from self.may_cancel(id)):
            self.fire.cancelled |= {id}
            yield None
            new = Message("timer", NONE, due, replaces=id)
            delete = Message("delete", id, self.log[id].due)
            if self.right("reschedule in two appends"):
                yield from self._append_durably(new, delete)
            else:
                yield from self._append_durably(new)
                yield from self._append_durably(delete)
        self.give("fire")

    # --- flush

    def flush_steps(self) -> Steps:
        """Write a checkpoint: capture, then log, timer log, wheel, level file, checkpoint."""
        put, fire = self.dequeue_put, self.fire
        passed, offset = put.passed_slot, self.deliver_levels.offset
        pages = [] if self.right("pages before Q") else list(self.wheel)
        yield None
        locks = self.unless("L without fire", "fire")
        yield from self.take("gil", *locks, "wheel")
        self.give("gil")
        if self.right("R before L"):
            passed = put.passed_slot
        if self.right("level offset is captured before"):
            offset = self.deliver_levels.offset
        kept = {"R": passed, "Q": self.enqueue_put.linked_index, "units": len(self.units)}
        kept |= {"offset": offset, "frontier": put.frontier}
        end = len(self.log)
        yield None
        # Of each place that is used, and of what the front has passed before R.
        oldest = [end, put.front_copy, *put.first_copy]
        oldest += [fire.held_from] if self.right("L ignores held deletes") else []
        oldest += [self.recovered_copy] if passed <= self.recovered_until else []
        kept["L"] = min(oldest)
        self.give(*locks)
        while len(pages) < CELLS:
            pages += self.wheel[len(pages) : len(pages) + CELLS // 2]
            self.give("wheel")
            yield None
            yield from self.take("wheel")
        to_end = self.right("units are synced to Q's end")
        synced = len(self.units) if to_end else kept["units"]
        self.give("wheel")
        if not self.right("level file before the log"):
            self.level_file = offset
        yield None
        self.acked = max(self.acked, end)
        yield None
        self.synced = synced
        yield None
        self.disk = pages
        yield None
        self.level_file = max(self.level_file, offset)
        yield None
        self.checkpoint = kept
        yield None
        self.flush.checkpointed_slot = passed
