"""What Penstock needs of a log, and no more: partitions to append to, to read by offset, and one fenced transaction.

Two implementations, :mod:`penstock.transport.memory` and :mod:`penstock.transport.kafka`; one contract suite holds for
both (``tests/transport/``). Values are bytes here: records get their meaning in :mod:`penstock.schemas`.

Errors are those of :mod:`penstock.schemas.errors`. Every call that waits takes a deadline in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..schemas.access import Operation
from ..schemas.topics import TopicSpec

RECORD_OVERHEAD_BYTES = 4_096
"""What is left for key and framing between the largest value and the largest message that a broker takes."""


class Partition(NamedTuple):
    topic: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a partition

    def __str__(self) -> str:
        return f"{self.topic}[{self.index}]"


class LogRecord(NamedTuple):
    """One record as a partition holds it."""

    partition: Partition
    offset: int
    timestamp_ms: int
    """Milliseconds since 1970: the append time where the topic has LogAppendTime, else the producer's."""
    key: bytes | None
    value: bytes | None
    """None: a tombstone."""


class TopicInfo(NamedTuple):
    name: str
    topic_id: str
    """Changes when a topic is deleted and created again."""
    partitions: int


class Copies(NamedTuple):
    """Where one partition is kept, by the ids of brokers."""

    leader: int | None
    """None: nobody can read or write it now."""
    brokers: frozenset[int]
    in_sync: frozenset[int]


class TopicFacts(NamedTuple):
    """A topic as its broker describes it to this user."""

    info: TopicInfo
    operations: frozenset[Operation] | None
    """What this user may do with it; None: the broker asks nobody."""
    settings: Mapping[str, str] | None
    """As the broker spells them; None: this user may not know."""
    copies: tuple[Copies, ...] = ()
    """Of each partition; empty where nothing is replicated."""


class Inspection(NamedTuple):
    """What a broker has of some topics, and what this user may do there."""

    address: str
    cluster: str
    """The cluster's id."""
    user: str | None
    """By which the broker knows this client; None where that is not a name and a password."""
    topics: Mapping[str, TopicFacts]
    hidden: frozenset[str]
    """Topics that this user may not see: they may exist or not."""
    brokers: frozenset[int] = frozenset()
    """Ids of those that are there now; empty where nothing is replicated."""


class OffsetRange(NamedTuple):
    """Offsets [begin, end) that a partition holds."""

    begin: int
    end: int


def checked_positions(positions: Mapping[Partition, int]) -> dict[Partition, int]:
    """A copy of ``positions``; ValueError where one is negative, which a Kafka client would take as "the end"."""
    for partition, offset in positions.items():
        if offset < 0:
            raise ValueError(f"offset {offset} of {partition} is no position: offsets begin at 0")
    return dict(positions)


OnOutcome = Callable[[int | None, Exception | None], None]
"""Called once per appended record: with its offset, or with why it is not certain to stand. It must not raise.

(None, None): it stands, and nobody has said where."""


class Reader(Protocol):
    """Reads partitions that it was given, by offset. Belongs to one thread."""

    def poll(self, timeout_s: float, records_max: int = 1_000) -> list[LogRecord]:
        """What there is, in order per partition, as soon as there is something; at the latest after ``timeout_s``.

        A record of an aborted or still open transaction is never returned. Raises :class:`PositionUnavailable` when
        the position has been truncated away, :class:`TopicMissing` when the topic is gone; while the broker is away
        it returns nothing. What was read before such an error is returned first; after PositionUnavailable a seek to
        an available position goes on.
        """

    def seek(self, partition: Partition, offset: int) -> None:
        """The next poll reads ``partition`` from ``offset``; what was fetched ahead of it is forgotten.

        Ends a pause of ``partition``. ValueError for a partition that this reader does not read.
        """

    def pause(self, partition: Partition) -> None:
        """Nothing of ``partition`` is returned, and nothing said of it raised (a lost position included), until a seek
        of it; what was fetched ahead of it is forgotten.

        Costs no fetches meanwhile. A second pause changes nothing. ValueError for a partition that this reader does not
        read.
        """

    def close(self) -> None: ...


class Writer(Protocol):
    """Appends, in the order of the calls and without a hole: after a failed append nothing more is taken.

    What stands in a partition is a prefix of what this writer appended to it. May be called from any thread.
    """

    def append(
        self, partition: Partition, value: bytes, key: bytes | None = None, on_outcome: OnOutcome | None = None
    ) -> None:
        """Queues a record; ``on_outcome`` is called from an unspecified thread, in the order of the appends.

        Behind the first outcome that is an error all are. Raises :class:`AppendFailed` when an earlier record failed,
        or when the queue stays full for too long; this record then has no outcome, and the writer takes no more. A
        record above ``max_record_bytes`` is refused by :class:`AppendFailed` too, and there the writer goes on.
        """

    def flush(self, timeout_s: float) -> bool:
        """Whether everything queued so far has had its outcome within ``timeout_s``."""

    def close(self, timeout_s: float = 5.0) -> None:
        """Flushes for at most ``timeout_s``; what has no outcome by then gets an error as its outcome."""


class FencedLog(Protocol):
    """A log that exactly one owner may write, in transactions; claiming it fences the owner before."""

    def commit(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        """Appends all (key, value) records atomically. Values None are tombstones.

        Raises :class:`Fenced` when a newer owner has claimed the log, :class:`OutcomeUnknown` when no answer came:
        in both cases this object is useless from then on. Raises :class:`AppendFailed` when certainly none of the
        records stands (one was too large, say): this object can still be used.
        """

    def close(self) -> None: ...


class Election(Protocol):
    """One candidate for a place that one at a time holds. From any thread.

    The holder keeps the place while its process runs, whoever else joins. When it closes, another is elected at once;
    when its process dies or stops, another is within about ``session_s``. One that was stopped may take itself for
    elected until it looks again: who may *write* is decided by :class:`FencedLog`, never here.
    """

    def elected(self) -> bool:
        """Whether this candidate holds the place, as far as it has heard; while the broker is away, what held before.

        Raises what keeps it from being a candidate at all: :class:`ConfigurationError` for a session that the broker
        does not allow, :class:`TransportError` for a group that it may not join. Of a topic that is gone it says
        nothing: nobody is elected.
        """

    def close(self) -> None:
        """Gives the place up, or the candidacy. At most a few seconds, also while the broker is away."""


class Transport(Protocol):
    """Where the logs are. Cheap to make; connects when first used; every part of it is made by the process using it."""

    max_record_bytes: int
    """The largest value that a record may have."""

    def check(self, timeout_s: float) -> str:
        """A sentence about the broker; :class:`BrokerUnreachable` where none answers."""

    def create_topics(self, specs: Iterable[TopicSpec], timeout_s: float = 30.0) -> None:
        """Creates those that do not exist, and adds partitions to those with too few; each can be written to then.

        Raises :class:`NotAuthorized` where this user may not.
        """

    def describe_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> Mapping[str, TopicInfo]:
        """Those of ``names`` that exist (and may be seen)."""

    def inspect(self, names: Iterable[str], timeout_s: float = 30.0) -> Inspection:
        """All that can be known of these topics: what they are, what this user may do, how they are set up."""

    def list_topics(self, prefix: str, timeout_s: float = 30.0) -> list[str]:
        """Names of the topics that begin with ``prefix``."""

    def delete_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> None:
        """Deletes those that exist."""

    def first_epoch(self) -> int:
        """Return a number above the epochs of every job whose topics were deleted from this broker, 1 or more."""

    def offsets(self, partitions: Iterable[Partition], timeout_s: float = 30.0) -> Mapping[Partition, OffsetRange]:
        """What each partition holds. Raises :class:`TopicMissing`."""

    def offsets_at(self, times_ms: Mapping[Partition, int], timeout_s: float = 30.0) -> Mapping[Partition, int]:
        """Each partition's first offset whose record has this timestamp or a later one; its end where none has.

        Times are milliseconds since 1970. Raises :class:`TopicMissing`.
        """

    def truncate(self, positions: Mapping[Partition, int], timeout_s: float = 30.0) -> None:
        """Deletes what lies below the given offsets."""

    def topic_bytes(self, names: Iterable[str], timeout_s: float = 10.0) -> Mapping[str, int] | None:
        """Bytes that each of ``names`` that exists takes where it is stored, its replicas together.

        Behind a truncation it falls when the broker has freed what was truncated. None where this client cannot know.
        """

    def reader(self, positions: Mapping[Partition, int]) -> Reader:
        """A reader of exactly these partitions, each from its offset. Raises :class:`TopicMissing`."""

    def writer(self) -> Writer: ...

    def read_all(self, partition: Partition, timeout_s: float = 60.0) -> list[LogRecord]:
        """Every committed record of a partition up to its present end."""

    def claim_log(self, topic: str, owner: str, timeout_s: float = 30.0) -> FencedLog:
        """Makes the caller the owner of ``topic``'s partition 0 under the name ``owner``; the previous one is fenced.

        Transactions that the previous owner left open are aborted by this call.
        """

    def election(self, name: str, topic: str, session_s: float) -> Election:
        """Makes the caller a candidate for the place called ``name``; ``topic`` exists and has one partition.

        A candidate whose process has said nothing for ``session_s`` is taken for dead. Raises :class:`TopicMissing`.
        """

    def candidates(self, name: str, timeout_s: float = 10.0) -> int:
        """Count the candidates for the place called ``name``, its holder included.

        0 also where this user may not see them.
        """

    def close(self) -> None: ...
