"""What must hold where a query drives the job (protocol, section 10)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.checkpoint_log.history import Checkpoint, Prepared
from penstock.coordinator.protocol.state import Phase
from penstock.schemas.codec import decode
from penstock.schemas.events import EventFrame, TriggerCheckpoint
from penstock.schemas.frames import unpack
from penstock.schemas.ids import NO_CHECKPOINT, SubtaskId
from penstock.schemas.status import BatchOutcome, BatchPlanned
from penstock.spark_integration.streaming.offsets import StreamOffset

from .violations import Violation

if TYPE_CHECKING:
    from .checks import Checks
    from .coordinator_process import CoordinatorProcess
    from .query_process import QueryProcess
    from .world import World

Lists = dict[int, list[int]]
"""By index of a subtask."""


class QueryChecks:
    """Spark's folders are the judge of what has happened: nothing else outlives everybody."""

    def __init__(self, world: World, checks: Checks) -> None:
        self.world, self.checks = world, checks
        self._spark_committed: set[int] = set()
        """Checkpoints whose batch Spark has committed, if only once."""
        self._read: dict[tuple[int, int], list[int]] = {}
        """What the first run of a batch has read, by batch and subtask."""
        self._in_folders: set[int] = set()
        """Those of them since Spark's checkpoint was last deleted."""
        self._counted: Lists = {}
        """Events of the batches that Spark has committed."""
        self._sent: dict[int, Lists] = {}
        """By checkpoint: what its coordinator had sent at the cut."""
        self._behind: dict[int, int] = {}
        """By checkpoint: the one it follows."""
        self._named: dict[int, list[Lists]] = {}
        """By checkpoint: what the runs of its batch have sent, of which one counts."""
        self._received: dict[int, Lists] = {NO_CHECKPOINT: {}}
        """By completed checkpoint: what the batches up to it have sent."""

    def begin_anew(self) -> None:
        """Spark's folders are gone, and with them all that was in batches."""
        self._read, self._counted, self._in_folders = {}, {}, set()

    # ---- the batch

    def read(self, batch: int, end: StreamOffset, index: int) -> list[int] | None:
        """The range of one subtask; None where it is gone and may be."""
        part, partition = end.partitions[index], self.world.event_partition(self._subtask(index))
        replaced = self.world.folders.newest > batch
        if replaced and self.world.transport.offsets([partition])[partition].begin > part.begin:
            return None
        rows, sequence, closed = list[int](), part.sequence, False
        for record in self.world.log(partition, part.begin, part.end):
            found = decode(record.value)
            if isinstance(found, EventFrame) and found.epoch == end.epoch:
                if found.sequence < sequence:
                    continue  # stands twice
                if found.sequence != sequence or closed:
                    raise Violation(f"section 10: {partition} has {found} in {part}, expected {sequence}, {closed=}")
                sequence += found.count
                rows += _uids(found)
            elif isinstance(found, TriggerCheckpoint) and found.checkpoint_id == end.checkpoint:
                closed = (found.epoch, found.sequence) == (end.epoch, sequence)
        if not closed:
            raise Violation(f"section 10: {part} of {partition} does not end with the marker of {end.checkpoint}")
        if self._read.setdefault((batch, index), rows) != rows:
            raise Violation(f"section 10: batch {batch} reads {rows}, and has read {self._read[batch, index]} before")
        return rows

    def stored(self, start: StreamOffset, end: StreamOffset) -> None:
        """Ranges touch and never overlap; a new epoch begins behind what is void."""
        for index, part in enumerate(end.partitions):
            before = start.partitions[index] if start.partitions else None
            touches = (
                before is None or part.begin == before.end or (end.epoch > start.epoch and part.begin > before.end)
            )
            if not touches or (end.epoch != start.epoch and part.sequence != 0):
                raise Violation(f"section 10: subtask {index} goes on at {part} of epoch {end.epoch} behind {start}")

    def written(self, batch: int, rows: list[list[int] | None]) -> None:
        for index, own in enumerate(rows):
            if own != self._read[batch, index]:
                raise Violation(f"section 10: batch {batch} of {index} is written as {own} and as other events")

    def committed_by_spark(self, batch: int, end: StreamOffset) -> None:
        n = end.checkpoint
        self._spark_committed.add(n)
        if n in self._in_folders:
            return  # the commit that was lost
        self._in_folders.add(n)
        for index in range(len(end.partitions)):
            rows = self._read[batch, index]
            counted = self._counted.setdefault(index, [])
            counted += rows
            if counted != self._sent[n].get(index, []):
                raise Violation(
                    f"section 10: the batches up to that of {n} hold {counted} for subtask {index}, and its"
                    f" coordinator had sent {self._sent[n].get(index)} at the cut"
                )
            self.world.handled |= {(self._subtask(index), uid) for uid in rows}

    def named(self, checkpoint_id: int, sent: Lists) -> None:
        self._named.setdefault(checkpoint_id, []).append({i: list(uids) for i, uids in sent.items() if uids})

    # ---- the planning

    def refused(self, query: QueryProcess, answer: BatchPlanned) -> None:
        mine = query.planner.run_offset
        newer = any(
            p.run_offset > mine for p in self.world.announced_planners if p.run_offset is not None and mine is not None
        )
        behind = self.world.folders.newest >= query.batch  # another query has gone on from where this one has begun
        if not behind and not ("another query" in answer.cause and newer):
            raise Violation(f"section 10: {query} goes on where Spark stands and is refused: {answer.cause}")

    def replied(self, coordinator: CoordinatorProcess, answer: BatchPlanned) -> None:
        claimed = self.checks.history.run
        own = self.checks.newest() is coordinator and answer.outcome is not BatchOutcome.REFUSED
        if own and (claimed is None or claimed.run != answer.run):
            raise Violation(f"section 10: {coordinator} plans for {answer.run}, and the claimed run is {claimed}")

    # ---- the coordinator's side

    def called(self, coordinator: CoordinatorProcess, checkpoint_id: int) -> None:
        query = coordinator.core.job.query.newest
        if query is None or query.answer is not None:
            raise Violation(f"section 10: {coordinator} begins checkpoint {checkpoint_id}, and no query waits for one")

    def prepared(self, prepared: Prepared) -> None:
        """Everything that was sent before the cut is in a batch up to this one, and nothing behind it."""
        header, history = prepared.header, self.checks.history
        n, last = header.checkpoint_id, history.last
        (part,) = header.operators
        lists = json.loads(self.checks.state_of(n, part.coordinator_state))
        self._behind[n] = history.last_id
        before = self._sent.get(history.last_id, {})
        self._sent[n] = {int(index): sent for index, sent in lists["sent"].items()}
        received = self._received[history.last_id]
        for subtask, snapshot in prepared.subtasks.items():
            index, (segment,) = subtask.index, snapshot.event_ranges
            if last is not None:
                above = last.subtasks[subtask].event_position
                if segment.begin < above or (segment.epoch == last.subtasks[subtask].epoch and segment.begin != above):
                    raise Violation(f"section 10: {subtask} in {n} begins at {segment}, and {last.id} ends at {above}")
            rows: list[int] = []
            for record in self.world.log(self.world.event_partition(subtask), segment.begin, segment.end):
                if isinstance(frame := decode(record.value), EventFrame) and frame.epoch == segment.epoch:
                    uids = _uids(frame)
                    rows += [] if uids[0] in (*before.get(index, []), *rows) else uids  # may stand twice
            if before.get(index, []) + rows != self._sent[n][index]:
                raise Violation(
                    f"section 10: the batch of {n} holds {rows} for {subtask} behind {before.get(index)}, and its"
                    f" coordinator had sent {self._sent[n][index]} at the cut"
                )
            if lists["received"][str(index)] != received.get(index, []):
                raise Violation(
                    f"section 10: at the cut of {n} its coordinator has {lists['received']}, and the batches up to"
                    f" {history.last_id} have sent {received}"
                )

    def completed(self, checkpoint: Checkpoint) -> None:
        n = checkpoint.id
        if n not in self._spark_committed:
            raise Violation(f"section 10: {n} completes, and Spark has not committed its batch")
        inbox = {s.index: [u for part in own.inbox for u in _uids(part)] for s, own in checkpoint.subtasks.items()}
        inbox = {index: uids for index, uids in inbox.items() if uids}
        if inbox not in (candidates := self._named.get(n, [{}])):
            raise Violation(f"section 10: {n} holds {inbox} of its batch, whose runs have sent {candidates}")
        before = self._received[self._behind[n]]
        indexes = range(self.world.config.parallelism)
        self._received[n] = {i: before.get(i, []) + inbox.get(i, []) for i in indexes}

    def sent_in(self, checkpoint_id: int, subtask: SubtaskId) -> list[int]:
        """What batches up to this checkpoint's have sent."""
        if checkpoint_id not in self._spark_committed:
            raise Violation(f"section 10: {subtask.operator} is told of {checkpoint_id}, which Spark has not committed")
        return self._received[checkpoint_id].get(subtask.index, [])

    def appended(self, coordinator: CoordinatorProcess, subtask: SubtaskId, frame: EventFrame) -> None:
        """From its cut to Spark's decision nothing goes to a subtask that was sent behind the cut."""
        cut_at = coordinator.users[subtask.operator].cut_at
        for n, prepared in self.checks.history.prepared.items():
            if prepared.header.epoch == frame.epoch and any(uid > cut_at[n] for uid in _uids(frame)):
                raise Violation(
                    f"section 10: {_uids(frame)}, sent behind the cut of {n}, is appended before Spark decides"
                )

    def attached(self, coordinator: CoordinatorProcess) -> None:
        """A query that runs has a coordinator that stands where Spark stands."""
        job, folders = coordinator.core.job, self.world.folders
        newest = self.world.announced_planners[-1:]
        if self.checks.newest() is not coordinator or job.phase is not Phase.RUNNING:
            return
        if [job.current.query_run] != [planner.run for planner in newest]:
            return
        restored = NO_CHECKPOINT if job.current.restored is None else job.current.restored.id
        stands = folders.offset(folders.newest).checkpoint
        if restored != stands:
            raise Violation(f"section 10: a query attaches, {coordinator} stands at {restored}, and Spark at {stands}")

    def after_step(self) -> None:
        """What Spark has stored last is what the job has, and its events are there."""
        folders, history = self.world.folders, self.checks.history
        end = folders.offset(folders.newest)
        n = end.checkpoint
        if n == NO_CHECKPOINT:
            return
        if n != history.last_id and n not in history.prepared:
            raise Violation(
                f"section 10: Spark has stored the batch of {n}, and the job has {history.last_id} and prepared"
                f" {list(history.prepared)}"
            )
        for index, part in enumerate(end.partitions):
            self.world.log(self.world.event_partition(self._subtask(index)), part.begin, part.end)

    # ---- the end

    def drained(self, coordinator: CoordinatorProcess) -> str | None:
        world, folders, history = self.world, self.world.folders, self.checks.history
        alive = [query for query in world.queries if query.alive]
        if len(alive) != 1:
            return f"{len(alive)} queries run"
        n = folders.offset(folders.newest).checkpoint
        if folders.newest != folders.newest_committed or n != history.last_id or history.prepared:
            return f"Spark stands at {n}, the job at {history.last_id} with {list(history.prepared)} prepared"
        (user,) = coordinator.users.values()
        (slots,) = ([*coordinator.core.job.current.slots.values()],)
        if user.open_futures or any(slot.gateway.held_events or slot.gateway.closed for slot in slots):
            return f"open futures {user.open_futures}, gateways {[str(s.gateway.closed) for s in slots]}"
        for index in user.subtasks:
            sent, counted = user.sent[index], self._counted.get(index, [])
            if len(sent) < world.events_wanted or sent != counted:
                return f"subtask {index} was sent {sent}, the batches hold {counted}"
            if user.received[index] != self._received[n].get(index, []):
                return f"{user.received} has arrived of {self._received[n]}"
        return None

    def _subtask(self, index: int) -> SubtaskId:
        return SubtaskId(self.world.settings.operators[0].name, index)


def _uids(frame: object) -> list[int]:
    return [json.loads(event) for event in unpack(frame.count, frame.lengths, frame.payload)]  # type: ignore[attr-defined]
