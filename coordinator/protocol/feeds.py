"""Batches of queries that do not drive the job, on their way to a coordinator (protocol, section 10.9).

A *feed* is what one query sends to one operator's coordinator. A batch has its effect once: its id must be above the
feed's position, and the position is part of every checkpoint. The sender gets its answer when a completed checkpoint
has the effect, so Spark commits no batch that a rollback can undo.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...checkpoint_log.history import Checkpoint
from ...schemas.acks import FEED_NAME_CHARS_MAX, FeedPart
from ...schemas.checkpoints import FeedPosition
from ...schemas.frames import Packed
from ...schemas.status import CommandReply
from .effects import CallBatch, Reply
from .feed_state import FeedKey, FeedParts, Feeds
from .inputs import BatchHandled, CoordinatorRaised
from .state import Dropped, JobState, SlotPhase

FEEDS_MAX = 1_000
"""Positions that a job keeps: a query keeps its id for ever, so they are never forgotten."""
POSITION_BYTES = 16
"""What a position takes in a checkpoint's record beside the name of its query."""
IDLE_S = 30.0
"""A batch whose next part has not come for so long gives its room to others."""
PART_BYTES = 100
"""What a part takes in memory beside its lengths and payload."""
CALLBACK = "handle_batch"
"""As the host calls it in CoordinatorRaised."""


def restored(checkpoint: Checkpoint | None) -> Feeds:
    """Return the feeds of an epoch that begins with this checkpoint."""
    operators = () if checkpoint is None else checkpoint.header.operators
    positions = {(o.operator, feed.query): feed.batch for o in operators for feed in o.feeds}
    return Feeds(positions, dict(positions))


def positions_of(operator: str, positions: Mapping[FeedKey, int]) -> tuple[FeedPosition, ...]:
    """Return what a checkpoint says of one operator's feeds."""
    return tuple(FeedPosition(query, batch) for (of, query), batch in positions.items() if of == operator)


def read(job: JobState, part: FeedPart) -> None:
    """Take the next part of a batch. A sender whose part is dropped writes its batch again."""
    if job.epoch is None:
        return job.drop(Dropped.FEED_OUT_OF_ORDER)
    if part.history != job.topic_ids.get(job.settings.topics.checkpoints):
        return job.drop(Dropped.FEED_OF_ANOTHER_INCARNATION)
    names_too_long = max(len(part.operator), len(part.query), len(part.sender)) > FEED_NAME_CHARS_MAX
    if names_too_long or min(part.batch, part.size) < 0 or not 0 <= part.part < part.parts:
        return job.drop(Dropped.UNREADABLE)
    feeds, key = job.current.feeds, (part.operator, part.query)
    if part.part == 0:
        return _begin(job, feeds, key, part)
    assembled = feeds.parts.get(key)
    if assembled is None or assembled.sender != part.sender or len(assembled.read) != part.part:
        return job.drop(Dropped.FEED_OUT_OF_ORDER)
    return _add(job, feeds, key, part)


def _begin(job: JobState, feeds: Feeds, key: FeedKey, part: FeedPart) -> None:
    durable = feeds.durable.get(key, -1)
    if part.batch == durable:
        return _answer(job, part.sender, True, _had_effect(part.batch))
    if part.batch < durable:
        return _answer(job, part.sender, False, _set_back(part.batch, durable))
    if part.batch <= feeds.positions.get(key, -1):  # mutant: a-batch-twice
        feeds.waiting[key] = part.batch, part.sender
        job.schedule.trigger_at = job.now
        return None
    if (refused := _refusal(job, feeds, key, part)) is not None:
        return _answer(job, part.sender, False, refused)
    if feeds.calling == key:
        return job.drop(Dropped.FEED_OUT_OF_ORDER)
    if (before := feeds.parts.pop(key, None)) is not None and before.sender != part.sender:
        _answer(job, before.sender, False, f"another process writes batch {part.batch} of the same query")
    if not _has_room(job, feeds, part):
        return job.drop(Dropped.FEED_WITHOUT_ROOM)
    feeds.parts[key] = FeedParts(part.sender, part.batch, part.parts, part.size, job.now)
    return _add(job, feeds, key, part)


def _refusal(job: JobState, feeds: Feeds, key: FeedKey, part: FeedPart) -> str | None:
    """Return why no coordinator takes this batch, whoever sends it again."""
    if job.settings.driven_by_query:
        return "a query drives this job: send with send_to_coordinator, from its batches"
    if job.current.draining is not None or job.history.stopping is not None:
        return "the job ends"
    if part.operator not in job.coordinated():
        known = ", ".join(job.coordinated()) or "none"
        return f"no operator {part.operator!r} with a coordinator; there is: {known}"
    if _taken(part) > (room := _room(job, part.operator)):
        return (
            f"the batch has {_taken(part)} bytes, and operator {part.operator} takes {room} (max_held_bytes): bound the"
            " source's batches (maxOffsetsPerTrigger, maxFilesPerTrigger), or raise it"
        )
    keys = feeds.positions.keys() | feeds.parts.keys()
    if key not in keys and (len(keys) >= FEEDS_MAX or _size({*keys, key}) > job.limits.feeds_bytes):
        return (
            f"the job has been fed by {len(keys)} queries, and its checkpoints hold no more of their positions: feed"
            " another job, or start this one with --fresh"
        )
    return None


def _taken(batch: FeedPart | FeedParts) -> int:
    return batch.size + PART_BYTES * batch.parts


def _room(job: JobState, operator: str) -> int:
    return job.settings.operator(operator).max_held_bytes


def _has_room(job: JobState, feeds: Feeds, part: FeedPart) -> bool:
    """Tell whether the operator has room for a batch; one whose sender has died gives up its own."""
    room, others = _room(job, part.operator), [key for key in feeds.parts if key[0] == part.operator]
    for key in others:
        other = feeds.parts[key]
        if len(other.read) < other.parts and feeds.calling != key and job.now - other.read_at > IDLE_S:
            del feeds.parts[key]
    return sum(_taken(feeds.parts[key]) for key in others if key in feeds.parts) + _taken(part) <= room


def size(feeds: Feeds) -> int:
    """Return how many bytes the positions take at most in the record of a checkpoint."""
    return _size(feeds.positions.keys())


def _size(keys: Collection[FeedKey]) -> int:
    return sum(POSITION_BYTES + len(query.encode()) for _, query in keys)


def _add(job: JobState, feeds: Feeds, key: FeedKey, part: FeedPart) -> None:
    assembled = feeds.parts[key]
    assembled.read_at = job.now
    assembled.read.append(Packed(part.count, part.lengths, part.payload))
    if sum(frame.size for frame in assembled.read) > assembled.size:
        del feeds.parts[key]
        job.drop(Dropped.UNREADABLE)


def hand_over(job: JobState) -> bool:
    """Hand over a whole batch whose coordinator owes no checkpoint future; whether there was one."""
    feeds = job.current.feeds
    if feeds.calling is not None or not feeds.parts:
        return False
    uncut = {operator for pending in job.current.pending.values() for operator in pending.uncut}
    for (operator, query), assembled in feeds.parts.items():
        owes_future = operator in uncut  # mutant: batch-within-a-call
        if len(assembled.read) == assembled.parts and not owes_future and _all_there(job, operator):
            feeds.calling = operator, query
            frames, assembled.read = assembled.read, []
            job.current.event_at = job.now
            job.emit(CallBatch(operator, query, assembled.batch, frames))
            return True
    return False


def _all_there(job: JobState, operator: str) -> bool:
    slots = job.current.slots.values()
    return all(slot.phase is not SlotPhase.ABSENT for slot in slots if slot.subtask.operator == operator)


def handled(job: JobState, done: BatchHandled) -> None:
    """The coordinator has the batch, or has refused it. A checkpoint that has it is asked for."""
    if job.epoch is None or job.epoch.number != done.epoch:
        return None
    feeds, key = job.epoch.feeds, (done.operator, done.query)
    assert feeds.calling == key, f"{done}, and {feeds.calling} is being called"
    feeds.calling = None
    assembled = feeds.parts.pop(key)
    if done.error:
        return _answer(job, assembled.sender, False, done.error)
    feeds.positions[key] = assembled.batch
    feeds.waiting[key] = assembled.batch, assembled.sender
    job.schedule.trigger_at = job.now
    return None


def raised(job: JobState, raised: CoordinatorRaised) -> None:
    """Refuse the batch that a coordinator has raised with; the epoch ends, and what it changed with it."""
    feeds = job.current.feeds
    if feeds.calling is not None and (feeds.calling[0], raised.callback) == (raised.operator, CALLBACK):
        assembled = feeds.parts.pop(feeds.calling)
        feeds.calling = None
        _answer(job, assembled.sender, False, f"{raised.error}; the coordinator goes back to its last checkpoint")


def completed(job: JobState, n: int, contained: Mapping[FeedKey, int]) -> None:
    """Checkpoint ``n`` is complete, and has the effect of every batch up to these positions."""
    feeds = job.current.feeds
    for key, batch in contained.items():  # an older savepoint may complete behind a newer checkpoint
        feeds.durable[key] = max(batch, feeds.durable.get(key, -1))
    for key, (batch, sender) in list(feeds.waiting.items()):
        if batch <= contained.get(key, -1):  # mutant: answered-ahead-of-its-checkpoint
            del feeds.waiting[key]
            _answer(job, sender, True, f"{_had_effect(batch)}, in checkpoint {n}", n)


def _set_back(batch: int, durable: int) -> str:
    return (
        f"batches up to {durable} of this query have had their effect, and its checkpointLocation has gone back to"
        f" batch {batch}: give the query the newest copy of it, or an empty one, which makes it another query"
    )


def _had_effect(batch: int) -> str:
    return f"batch {batch} has had its effect"


def _answer(job: JobState, sender: str, accepted: bool, outcome: str, checkpoint_id: int = -1) -> None:
    job.emit(Reply(CommandReply(sender, accepted, outcome, checkpoint_id, b"")))
