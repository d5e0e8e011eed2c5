"""The relay, which makes each row of an outbox a timer of a store, once.

One message of the store, the *turn*, makes it once. Who was handed the turn acknowledges it by one
`ack_and_put_many` that puts the timers of some rows and the next turn, which names those rows: all
of it is there, or nothing. Then the rows are deleted. Who is handed a turn deletes the rows that it
names before it reads others. So a crash at any place leaves either a row without a timer, or a row
that the turn names. There is one turn for each database: of many relays one puts at a time, and
the put of one that was cut off is refused, because its turn was acknowledged.

The first turn is put by whoever finds none. If two do, the database decides: it notes the name of
one of them (`store`), which each next turn carries; a turn with another name has put nothing, and
is dropped. If the database knows a name and the store has no turn, the table belongs to another
store.

An idle turn is put anew each minute: a message that is not acknowledged keeps the log behind it on
the disk.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from timerstore.errors import (
    CongestedError,
    InvalidArgumentError,
    StoreClosedError,
    StoreFullError,
    TimerStoreError,
    TooLateError,
)
from timerstore.outbox.table import TABLE, Outbox, database_at
from timerstore.services.world.background import BackgroundThread, Failure, Flag
from timerstore.share.link import has_ended
from timerstore.values.no_pickle import Closes

if TYPE_CHECKING:
    from timerstore.watching.any_store import AnyStore

log = logging.getLogger("timerstore")

TOPIC: Final = "timerstore-outbox-"
"""Before the number of a database: the topic of its turn, and the group that reads it."""
ROWS_MAX: Final = 1_000
"""In one step; a put takes 1,023 timers."""
ROWS_BYTES_MAX: Final = 2 << 20
TURN_S: Final = 60.0
LOOK_S: Final = 1.0
"""So long a turn is waited for; so often an idle table is looked at, whatever notifies."""
AGAIN_S: Final = 1.0
_LOOKS: Final = 5
_CONGESTED: Final = 5
"""So often a row is congested, and the turn alone is not, until that is said of the row: a slot
that is nearly full refuses by chance, and the turn's may be the one."""
_ERROR_LENGTH_MAX: Final = 500
_READ: Final = f"""
select t.id, t.nonce, t.topic, t.due_ms, t.body, t.key, t.tag, t.properties from {{table}} t join (
  select id, sum(size) over (order by id) - size as before from (
    select id, length(body) + 4 * coalesce(length(properties), 0) + 512 as size
    from {{table}} where error is null order by id limit {ROWS_MAX}
  ) as sized
) as chosen on t.id = chosen.id where chosen.before < {ROWS_BYTES_MAX} order by t.id
"""
Row = tuple[Any, ...]
Named = list[tuple[int, int]]
"""Which rows: id and nonce of each."""


class Relay(Closes):
    """Puts the rows of an outbox into a store, each once, over crashes of either side.

    As a context manager it does so in a thread of its own; leave it before the store is closed.
    Several threads and processes may each have one for the same table and store: one is at work,
    and another one goes on where it ends.
    """

    def __init__(
        self, store: AnyStore, database: str | os.PathLike[str], *, table: str = TABLE
    ) -> None:
        """`database`: `postgresql://…`, or a file of SQLite; the relay connects by itself."""
        self._store, self._table = store, Outbox(table=table).table
        self._db, self._is_connected = database_at(database, table), False
        self._topic, self._name, self._finished = "", "", Named()
        self._turn: Any = None  # the batch with that one message
        self._turn_s = 0.0
        self._stop, self._failure = Flag(), Failure()
        self._thread: BackgroundThread | None = None
        self.put_count = 0
        """How many rows it has put."""
        self.refused_count = 0
        """How many rows the store refused; they stay in the table, with the reason in `error`."""
        self.problem: str | None = None
        """Why the thread cannot go on. It tries again each second, unless `check` says it ended."""

    def step(self) -> int:
        """Put the rows that are committed; return how many.

        The thread of a `with` block does this all the time. Call it yourself in a loop of your own,
        and `close` at its end. Timers are durable before their rows are deleted. Raises
        InvalidArgumentError if the table belongs to another store, what the database's driver
        raises, and what `put` raises, except of a row that the store refuses. Then call it again.
        """
        self.check()
        if self._db.is_replaced():
            self._disconnect()
        count = 0
        while self._take_turn():
            rows = self._execute(_READ)
            if not rows:
                if time.monotonic() - self._turn_s > TURN_S:
                    self._hand_on([], [])
                break
            count += self._put_rows(rows)
            if self._stop.is_set():
                break
        return count

    def _put_rows(self, rows: Sequence[Row]) -> int:
        """Put rows in their order, fewer at once if the store refuses them; return how many."""
        count, many, named, congested = 0, len(rows), self._finished, 0
        while rows:
            part = rows[:many]
            if not self._take_turn() or self._finished != named:
                break  # another relay had the turn meanwhile: it may have put these rows
            try:
                if not self._hand_on([_as_put(each) for each in part], [each[:2] for each in part]):
                    break
            except (InvalidArgumentError, StoreFullError) as e:
                if len(part) > 1:
                    many = len(part) // 2
                    continue
                if isinstance(e, CongestedError) and self._hand_on([], []):
                    named, congested = self._finished, congested + 1
                    if congested % _CONGESTED:
                        continue
                elif isinstance(e, StoreFullError):
                    raise
                self._refuse(part[0], str(e)[:_ERROR_LENGTH_MAX])
            else:
                count, many, named = count + len(part), many * 2, self._finished
                congested = 0
            rows = [] if self._stop.is_set() else rows[len(part) :]
        return count

    def _refuse(self, row: Row, error: str) -> None:
        """Leave a row in the table, with the reason: those behind it are put."""
        update = "update {table} set error = :error where id = :id and nonce = :nonce"
        self._execute(update, error=error, id=row[0], nonce=row[1])
        self.refused_count += 1
        log.error("row %d of %s was refused: %s", row[0], self._table, error)

    # --- the turn

    def _hand_on(self, puts: list[dict[str, Any]], rows: Named) -> bool:
        """Put, with the next turn, and delete the rows; False if the turn is not ours any more."""
        turn = {"body": _turn_body(self._name, rows), "topic": self._topic}
        try:
            next(iter(self._turn)).ack_and_put_many([*puts, turn])
        except (TooLateError, StoreClosedError):  # of a client's, only its owner may be gone
            self._turn = None
            return False
        self._turn = self.problem = None
        self.put_count += len(rows)
        self._finish(rows)
        return True

    def _finish(self, rows: Named) -> None:
        """Delete rows whose timers were put, once those are durable."""
        if rows and rows != self._finished:
            self._store.flush()
            ids, nonces = (",".join(str(each[i]) for each in rows) for i in (0, 1))
            self._execute(f"delete from {{table}} where id in ({ids}) and nonce in ({nonces})")
        self._finished = rows

    def _take_turn(self) -> bool:
        """Wait a moment for the turn unless it is here; finish what it names."""
        self._connect()
        if self._turn is not None:
            return True
        turn: Any = self._store.pull(self._topic, group=self._topic, max_count=1, timeout=LOOK_S)
        if not len(turn):
            self._begin()
            return False
        try:
            name, rows = _read_turn(turn.bodies[0].as_py())
            if name and name != self._name:
                self._store.flush()  # else a power cut may leave the name without a turn
                note = "update {table}_relay set store = :store where store is null"
                self._execute(note, store=name)
                self._name = self._noted()[1] or ""
            if not name or name != self._name:
                turn.ack()  # it has put nothing
                return False
            self._finish(rows)
        except BaseException:
            turn.give_back([0])
            raise
        self._turn, self._turn_s = turn, time.monotonic()
        return True

    def _begin(self) -> None:
        """Put the first turn, if there is none and the database knows of none."""
        name = self._noted()[1]
        if self._is_begun():
            return
        if name is not None:
            raise InvalidArgumentError(
                f"The rows of {self._table} were put into another store, or this one was brought "
                f"back to a state before the first of them: none is put into {self._store.path}. "
                "To go on with this store, end the relay of the other one, and execute: "
                f"update {self._table}_relay set store = null"
            )
        turn = _turn_body(uuid4().hex, [])
        self._store.put(turn, topic=self._topic, key=self._topic, if_absent=True)

    def _is_begun(self) -> bool:
        """Tell whether the store has a turn, which one look may miss: it may be on its way."""
        for _ in range(_LOOKS):
            if self._store.count(self._topic):
                return True
            groups = self._store.stats().groups
            if any(each.topic == self._topic and each.lag_count for each in groups):
                return True
            time.sleep(LOOK_S / 100)
        return False

    # --- the database

    def _connect(self) -> None:
        if not self._is_connected:
            self._give_back()  # whoever has the turn looks whether its rows are deleted
            self._name, self._finished = "", []
            self._db.connect()
            self._is_connected = True
            number, name = self._noted()
            self._topic = TOPIC + number
            if name is None:
                self._begin()

    def _noted(self) -> tuple[str, str | None]:
        """Return the number of the database, and the name of its turns."""
        for number, name in self._execute("select outbox, store from {table}_relay"):
            return number, name
        self._disconnect()  # it may be between the statements of `create`
        raise self._db.error(f"{self._table}_relay is empty. Call Outbox.create.")

    def _execute(self, statement: str, **values: Any) -> list[Row]:
        try:
            return self._db.execute(statement.format(table=self._table), **values)
        except self._db.error:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._is_connected:
            self._is_connected = False
            with suppress(self._db.error):
                self._db.close()

    # --- the thread

    def __enter__(self) -> Relay:
        self._stop = Flag()
        self._thread = BackgroundThread("timerstore-outbox", self._run, self._fail)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop; what is under way is finished, and another relay may go on at once."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._give_back()
        self._disconnect()

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        self._failure.check()

    def _give_back(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            with suppress(TimerStoreError):  # a closed store hands it out when it is opened again
                turn.give_back([0])

    def _fail(self, error: BaseException) -> None:
        self.problem = str(error)
        self._failure.keep(error)
        log.error("rows of %s are not put any more", self._table, exc_info=error)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if not self.step() and self._turn is not None:
                    self._db.wait(self._stop, LOOK_S)
                self.problem = None
            except (TimerStoreError, self._db.error) as e:
                if isinstance(e, InvalidArgumentError) or has_ended(self._store, e):
                    raise
                if str(e) != self.problem:
                    log.warning("rows of %s wait, tried again each second: %s", self._table, e)
                self.problem = str(e)
                self._stop.wait(AGAIN_S)


def _as_put(row: Row) -> dict[str, Any]:
    """Return the put that a row is; what is wrong with its values, the store says."""
    if not isinstance(row[1], int):  # a column of SQLite takes any value
        raise InvalidArgumentError(f"nonce is {row[1]!r}. Leave it to the database.")
    put = dict(zip(("topic", "at_ms", "body", "key", "tag"), row[2:], strict=False))
    try:
        return put if row[-1] is None else put | {"properties": json.loads(row[-1])}
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidArgumentError(f"properties is no JSON: {e}. Correct it.") from e


def _turn_body(name: str, rows: Named) -> bytes:
    return json.dumps({"store": name, "rows": rows}).encode()


def _read_turn(body: bytes) -> tuple[str, Named]:
    """Return the name of a turn, and the rows that it names; "" if it is none."""
    try:
        told = json.loads(body)
        return str(told["store"]), [(int(id), int(nonce)) for id, nonce in told["rows"]]
    except (ValueError, TypeError, KeyError) as e:
        log.error("a message of an outbox is no turn, and is passed by: %r", e)
        return "", []
