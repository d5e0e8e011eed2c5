"""A client of a RocketMQ cluster, with the calls of a store that a cluster can do."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from timerstore.calls.consuming.delivery import LISTED_MAX, Batch, Delivery, dead_topic
from timerstore.consumer.consumersettings import ConsumerSettings
from timerstore.consumer.subscription import Source
from timerstore.errors import (
    ClusterError,
    ForkedProcessError,
    InvalidArgumentError,
    StoreClosedError,
    TimerStoreError,
)
from timerstore.jit.guards import Lock
from timerstore.rocketmq.clustersource import ClusterSource
from timerstore.rocketmq.library import (
    asked,
    broker_of,
    check_address,
    check_proxy,
    check_reachable,
    check_route,
    load,
    route_of,
)
from timerstore.rocketmq.receiving import (
    HIDDEN_S_MAX,
    HIDDEN_S_MIN,
    POLL_S,
    RECEIVED_MAX,
    ClusterRun,
    Reader,
    hidden_s,
)
from timerstore.rocketmq.sending import (
    Sender,
    Sending,
    check_cluster_topic,
    check_key_and_tag,
    check_properties,
    handles_of,
    known_id,
    new_id,
    whole_seconds_ms,
)
from timerstore.timelog.bytes import format as fmt
from timerstore.values.check_arguments import (
    Bodies,
    Durations,
    Instants,
    Keys,
    Times,
    binary_array,
    check_body,
    check_due_array,
    check_group,
    encode_properties,
    given_delay,
    given_times,
    resolve_due_ms,
)
from timerstore.values.kinds import (
    Duration,
    check_bool,
    check_duration,
    check_int,
    check_kind,
    check_timeout,
)
from timerstore.values.no_pickle import Closes
from timerstore.values.times import now_ms

log = logging.getLogger("timerstore")

_CONSUME_COUNT: Final = 16
_LAST_MS: Final = 1_000
"""So near to its due time a broker may have read a timer's slot."""
_WRONG_TIME: Final = "timestamp invalid"
_ALL: Final = "*"
_TIMEOUT_S: Final = 3
_INVISIBLE_S: Final = 60


class Cluster(Closes):
    """A RocketMQ cluster, as a program uses it that outgrew its store; made by `connect`.

    It is no store: it has `put`, `put_many`, `cancel`, `consume`, `pull`, `dead_letters`, and
    `timerstore.Consumer` takes it. What a cluster cannot do is not there. Any number of threads may
    use it, but no forked child.

    What differs from a store: times are whole seconds, rounded up. What was pulled is hidden from
    others for `invisible` seconds; if it is not acknowledged by then, it comes again. The broker
    says how durable a put is. A broker that is killed may fire a timer twice, with the same id.

    Each call raises ClusterError if the cluster refuses it or does not answer, StoreClosedError
    after `close`.
    """

    def __init__(
        self,
        address: str,
        *,
        invisible: Duration,
        timeout: Duration,
        access_key: str,
        secret_key: str,
        tls: bool,
    ) -> None:
        host, port = check_address(address)
        self.address = address = f"{host}:{port}"
        """Where its proxy listens."""
        timeout_s = check_duration(timeout, "timeout").total_seconds()
        if not 1 <= timeout_s <= 3_600:
            raise InvalidArgumentError(f"timeout is {timeout!r}. Pass 1 second to an hour.")
        self._timeout_s = math.ceil(timeout_s)
        self._hide_s, self._poll_s = hidden_s(check_duration(invisible, "invisible")), POLL_S
        if not HIDDEN_S_MIN <= self._hide_s <= HIDDEN_S_MAX:
            raise InvalidArgumentError(f"invisible is {invisible!r}. Pass 10 seconds to 12 hours.")
        check_bool(tls, "tls")
        check_kind(access_key, str, "access_key")
        check_kind(secret_key, str, "secret_key")
        check_reachable(address, self._timeout_s)
        library = load()
        credentials = library.Credentials(access_key, secret_key)
        self._config = asked(
            f"connecting to {address}",
            lambda: library.ClientConfiguration(
                address, credentials, request_timeout=self._timeout_s
            ),
        )
        self._tls, self._pid = tls, os.getpid()
        self._producer = library.Producer(self._config, tls_enable=tls)
        asked(f"connecting to {address}", self._producer.startup)
        check_proxy(address, self._producer)
        self.sender = Sender(self._producer, self._timeout_s)
        self._lock = Lock()
        self._readers: dict[tuple[str, str], Reader] = {}
        self._closed = False
        self.new_source = self._new_source

    def __repr__(self) -> str:
        return f"<Cluster at {self.address}{', closed' if self._closed else ''}>"

    # --- putting

    def put(
        self,
        body: bytes,
        *,
        topic: str = "default",
        delay: Duration | None = None,
        delay_ms: int | None = None,
        at: datetime | None = None,
        at_ms: int | None = None,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Put one timer and return its id.

        Pass at most one time, as for a store. It is rounded up to a whole second; the id has the
        rounded one. Without a time, or if the time has passed, the message is due now. Its broker
        has the message on return; the broker's `flushDiskType` and its replicas say whether it
        outlives the machine. O(size), and a way to the broker and back.

        A key has no blanks. Key, tag and properties take 16,384 bytes at most, unless the proxy is
        set otherwise. Raises InvalidArgumentError, also if the due time is further ahead than the
        cluster takes: a day by default. If no answer came, ClusterError is raised, and the timer
        may be there all the same: `cancel` takes the id in `error.unsure`.

        >>> id = cluster.put(b"hello", delay=timedelta(minutes=5))  # doctest: +SKIP
        """
        self._check_open()
        put_ms = now_ms()
        due_ms = resolve_due_ms(put_ms, given_delay(delay, delay_ms), at, at_ms, None)
        sending = _sending(put_ms, due_ms, body, topic, key, tag, properties)
        self.sender.send(sending)
        return sending.id

    def put_many(
        self,
        bodies: Bodies,
        *,
        topic: str = "default",
        delay: Durations | None = None,
        delay_ms: Times | None = None,
        at: Instants | None = None,
        at_ms: Times | None = None,
        keys: Keys | None = None,
        tag: str | None = None,
    ) -> list[str]:
        """Put many timers and return their ids; the arguments are those of a store's `put_many`.

        All are checked before the first is sent. Each is a message of its own, and 64 are under way
        at once. If an error ends it, the error's `ids` are those that were put. They may not be the
        first ones: `error.unsure` has the ids of which the cluster did not say whether it has them.
        """
        self._check_open()
        put_ms = now_ms()
        if delay is not None or at is not None:
            delay_ms, at_ms = given_times(delay, delay_ms, at, at_ms)  # type: ignore[assignment]
        texts = binary_array(bodies, "bodies", takes_text=False).to_pylist()
        due_ms = check_due_array(len(texts), put_ms, at_ms, delay_ms, None).tolist()
        names: list[str | None] = [None] * len(texts)
        if keys is not None:
            names = binary_array(keys, "keys", takes_text=True).cast(pa.string()).to_pylist()
            if len(names) != len(texts):
                raise InvalidArgumentError(
                    f"There are {len(names)} keys for {len(texts)} bodies. Pass one each."
                )
        made = [
            _sending(put_ms, *each, tag, None)
            for each in zip(due_ms, texts, [topic] * len(texts), names, strict=True)
        ]
        failed: list[TimerStoreError] = []
        done: list[str] = []
        for sending, error in self.sender.send_many(made):
            if error is None:
                done.append(sending.id)
            else:
                failed.append(error)
        if failed:
            error = failed[0]
            error.ids = done
            if isinstance(error, ClusterError):
                error.unsure = [id for each in failed for id in getattr(each, "unsure", ())]
            raise error
        return done

    def cancel(self, id: str, *, topic: str = "default") -> bool:
        """Cancel a timer of a topic by recall. True: its broker has the recall. False: too late.

        It takes ids of this client, and of a store that was handed over or moved. An id does not
        name its topic, so you have to. A broker does not say whether there was such a timer: for a
        timer that was cancelled before, or another topic, the answer is True as well.

        In the last second before the due time the answer is False, and the timer fires. Each broker
        of the topic is asked. Raises UnknownTimerError if the id has another form, ClusterError if
        one of them does not answer, recall is off (`recallMessageEnable`), or the timer is further
        ahead than `timerMaxDelaySec`.
        """
        self._check_open()
        check_cluster_topic(topic)
        parts = known_id(id)
        if parts.due_ms - now_ms() <= _LAST_MS:
            return False
        failed: list[ClusterError] = []
        for broker in self._brokers(topic):
            for handle in handles_of(topic, broker, parts):
                try:
                    self._recall(id, topic, handle)
                except ClusterError as e:
                    is_over = parts.due_ms - now_ms() <= 0
                    if _WRONG_TIME in str(e) and is_over:
                        return False
                    failed.append(e)
        for error in failed:
            raise error
        return True

    def _recall(self, id: str, topic: str, handle: str) -> None:
        asked(f"cancelling {id}", lambda: self._producer.recall_message(topic, handle))

    def _brokers(self, topic: str) -> list[str]:
        """Return the names of the brokers that have a topic."""
        route = check_route("cancelling", self._producer, topic)
        return sorted({broker_of(each) for each in route.message_queues})

    # --- consuming

    def consume(
        self, topic: str, *, group: str = "default", timeout: Duration | None = None
    ) -> Iterator[Delivery]:
        """Yield each message of a topic when it is due. Acknowledge it with `ack`.

        It receives up to 16 at once, so `invisible` has to be longer than 16 of them take. It ends
        after `timeout` seconds without a message, rounded up to the 5 s that a proxy waits. Where a
        group begins that never read the topic, the broker says: at its first message if it still
        has the first file of the queue in memory, else at its last.
        """
        timeout_s = check_timeout(timeout)
        reader = self._reader(group, topic)
        return self._iterate(reader, timeout_s)

    def _iterate(self, reader: Reader, timeout_s: float | None) -> Iterator[Delivery]:
        while True:
            try:
                run = self._receive(reader, _CONSUME_COUNT, timeout_s)
            except StoreClosedError:
                if self._closed:
                    return
                raise
            if not len(run):
                return
            yield from run.each(now_ms, lambda: self._closed)

    def _receive(self, reader: Reader, count_max: int, timeout_s: float | None) -> ClusterRun:
        """Return what came and has not expired; it is empty only if nothing came."""
        while True:
            came = ClusterRun(reader, reader.receive(count_max, self._hide_s, timeout_s))
            run = came.unexpired(now_ms())
            if len(run) or not len(came):
                return run

    def pull(
        self,
        topic: str,
        *,
        group: str = "default",
        max_count: int = 1_024,
        timeout: Duration | None = None,
    ) -> Batch:
        """Return up to `max_count` due messages by columns.

        It waits for the first one. After `timeout` seconds, rounded up to the 5 s that a proxy
        waits, it returns an empty batch. A broker seldom hands out more than 32 at once.
        """
        max_count = check_int(max_count, "max_count", 1, 1 << 30)
        timeout_s = check_timeout(timeout)
        reader = self._reader(group, topic)
        return self._receive(reader, min(max_count, RECEIVED_MAX), timeout_s)

    def dead_letters(self, group: str, limit: int | None = LISTED_MAX) -> list[Delivery]:
        """Receive dead letters of a group: messages that failed too often.

        Unlike a store's this is no listing: each letter is hidden for `invisible` seconds, then
        comes again. Its `ack` drops it; to retry it, put its body again, then `ack`. It ends when
        5 s bring no more.
        """
        if limit is not None:
            limit = check_int(limit, "limit", 0, 1 << 30)
        check_cluster_topic(check_group(group), "group")
        self._check_open()
        topic = dead_topic(group)
        if route_of(f"asking for {topic}", self._producer, topic) is None:
            return []
        reader = self._reader(group, topic)
        found: list[Delivery] = []
        while limit is None or len(found) < limit:
            left = RECEIVED_MAX if limit is None else limit - len(found)
            received = reader.receive(min(left, RECEIVED_MAX), self._hide_s, 0)
            if not received:
                break
            found += ClusterRun(reader, received)
        return found

    def _reader(self, group: str, topic: str) -> Reader:
        self._check_open()
        check_cluster_topic(check_group(group), "group")
        check_cluster_topic(topic)
        with self._lock.guard():
            known = self._readers.get((group, topic))
            if known is None:
                known = self._readers[group, topic] = self._new_reader(group, topic, _ALL)
            return known

    def _new_reader(self, group: str, topic: str, tags: str) -> Reader:
        self._check_open()
        check_route(f"reading {topic}", self._producer, topic)
        times_s = self._timeout_s, self._poll_s
        return Reader(self._config, group, topic, tags, *times_s, tls=self._tls)

    def _new_source(self, settings: ConsumerSettings) -> Source:
        self._check_open()
        check_cluster_topic(settings.group, "group")
        return ClusterSource(self._new_reader, settings, self._check_open, lambda: self._closed)

    # --- the end

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                "This client belongs to the parent process. Connect after the fork."
            )
        if self._closed:
            raise StoreClosedError(f"The client of {self.address} was closed. Connect again.")

    def close(self) -> None:
        """Leave; it may take 5 s. What was received and not acknowledged comes again.

        Closing twice does nothing. Some threads of RocketMQ's client stay until the process ends.
        """
        if os.getpid() != self._pid:
            return
        with self._lock.guard():
            if self._closed:
                return
            self._closed = True
            readers, self._readers = list(self._readers.values()), {}
        for each in readers:
            each.stop()
        for each in readers:
            each.close()
        try:
            self._producer.shutdown()
        except Exception as e:
            log.debug("the client's shutdown failed: %s", e)


def connect(
    address: str,
    *,
    invisible: Duration = _INVISIBLE_S,
    timeout: Duration = _TIMEOUT_S,
    access_key: str = "",
    secret_key: str = "",
    tls: bool = False,
) -> Cluster:
    """Return a client of the RocketMQ cluster whose proxy listens at `address` for gRPC.

    It is a context manager. `address`: HOST:PORT, or rocketmq://HOST:PORT. `invisible`: for how
    long a message is hidden from others once it was received, 10 s to 12 h. `timeout`: how long one
    answer may take; RocketMQ's client asks up to three times. `access_key`, `secret_key`: if the
    cluster asks for them. Raises ClusterError if nobody listens there.

    It needs the extra `[rocketmq]`. If RocketMQ's client is not installed, or has another
    version, InvalidArgumentError says what to install. The client writes a log into
    `~/logs/rocketmq_python/`, and configures `logging` when it is imported: configure yours after
    `connect`.

    >>> cluster = timerstore.rocketmq.connect("localhost:8081")  # doctest: +SKIP
    """
    return Cluster(
        address,
        invisible=invisible,
        timeout=timeout,
        access_key=access_key,
        secret_key=secret_key,
        tls=tls,
    )


def _sending(
    put_ms: int,
    due_ms: int,
    body: Any,
    topic: str,
    key: str | None,
    tag: str | None,
    properties: Mapping[str, str] | None,
) -> Sending:
    check_cluster_topic(topic)
    encode_properties(key, tag, properties)
    body = check_body(body, 0, fmt.MESSAGE_BYTES_MAX)
    check_key_and_tag(key, tag)
    named = dict(properties or {})
    check_properties(named)
    if due_ms <= put_ms:
        return Sending(new_id(due_ms), topic, body, None, key, tag, named)
    due_ms = whole_seconds_ms(due_ms)
    return Sending(new_id(due_ms), topic, body, due_ms // 1_000, key, tag, named)
