"""The checkpoint log by itself: epochs, ids, and checkpoints that are whole (protocol, sections 4, 7 and 10)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import replace

from ..schemas.checkpoints import (
    CheckpointCompleted,
    CheckpointLogRecord,
    CheckpointPart,
    CheckpointPrepared,
    CommandExecuted,
    EpochClaimed,
    Forked,
    JobFinished,
    RunClaimed,
    SubtaskSnapshot,
    key_of,
)
from ..schemas.ids import NO_CHECKPOINT, SubtaskId
from .checkpoint_index import EpochFacts, KnownCheckpoint, LogFacts, stripped
from .derived import losses
from .record_summary import told
from .report import Kind, Place, Report
from .snapshots import check_ranges, check_savepoint_inbox

HOLE = 2
"""A transaction's end takes an offset on Kafka. More than one missing in a row: compaction, or an aborted commit."""


class CheckpointLogCheck:
    """Fed every record of the log in order, tombstones included; then ``finish`` gives the facts."""

    def __init__(self, report: Report, place: Place) -> None:
        self.facts = LogFacts()
        self._report, self._place = report, place
        self._parts: dict[int, dict[int, tuple[int, CheckpointPart]]] = {}
        self._ended: int | None = None
        """Where the job ended, while no epoch has begun since."""
        self._epoch: EpochFacts | None = None
        self._reserved_through = 0
        self._expected_offset = -1  # no transaction has ended before the first record
        self._owed: tuple[int, int] | None = None
        """An id that an epoch has left out, and where; only a derived checkpoint may have it."""
        self._if_whole: list[tuple[Kind, int, str, str]] = []
        """Damage, unless something has been taken out of the log rightly."""

    def read(
        self, offset: int, key: bytes | None, record: CheckpointLogRecord | None, *, readable: bool = True
    ) -> None:
        """The record at ``offset``; None is a tombstone, or with ``readable`` false one that cannot be decoded."""
        self._report.checked["checkpoint log records"] += 1
        if offset - self._expected_offset >= HOLE:
            self.facts.whole = False
        self._expected_offset = offset + 1
        name = "" if key is None else key.decode(errors="replace")
        if not readable:
            return self._damage(Kind.UNREADABLE, offset, "a record of the checkpoint log", "one that cannot be decoded")
        if record is not None and name != key_of(record):
            self._damage(Kind.KEY, offset, f"the key {key_of(record)}", f"{name!r} on a {type(record).__name__}")
        if self._ended is not None and isinstance(record, RunClaimed | CheckpointCompleted | CheckpointPrepared):
            expected = f"nothing but a new epoch behind the end of the job at offset {self._ended}"
            self._damage(Kind.ENDED, offset, expected, told(record))
        match record:
            case None:
                self._discard(offset, name)
            case EpochClaimed():
                self._claim(offset, record)
            case CheckpointPart():
                self._parts.setdefault(record.checkpoint_id, {})[record.part] = offset, record
            case CheckpointPrepared():
                self._prepare(offset, record)
            case CheckpointCompleted():
                self._complete(offset, record)
            case RunClaimed():
                self.facts.runs[record.offset] = record.run, offset
            case CommandExecuted():
                self.facts.commands[record.offset] = record.command, offset
            case JobFinished():
                self._in_epoch(offset, record.epoch, record)
                self._ended = offset
            case Forked():
                self.facts.whole, self.facts.forked = False, True
        return None

    def finish(self) -> LogFacts:
        self._nothing_owed()
        for kind, offset, expected, found in self._if_whole:
            if self.facts.whole:
                self._damage(kind, offset, expected, found)
            else:
                self._report.unjudged["what compaction has taken from the checkpoint log"] += 1
        self._if_whole.clear()
        return self.facts

    def _damage(self, kind: Kind, offset: int, expected: str, found: str) -> None:
        self._report.damage(kind, self._place, offset, expected, found)

    # ---- epochs

    def _claim(self, offset: int, claim: EpochClaimed) -> None:
        facts, current = self.facts, self._epoch
        facts.claim_offset = offset
        self._nothing_owed()
        self._topics(offset, claim.topic_ids)
        if current is not None and claim.epoch == current.number:
            return self._reserve_more(offset, current, claim)
        if current is None:
            facts.whole = facts.whole and offset == 0  # its first epoch is above those of earlier incarnations
        elif claim.epoch < current.number:
            self._damage(Kind.EPOCH, offset, f"the claim of an epoch above {current.number}", told(claim))
        if current is not None or facts.whole:
            first = self._reserved_through + 1
            if claim.first_checkpoint_id == first + 1:
                self._owed = first, offset  # by the checkpoint that a rescaling derives
            elif claim.first_checkpoint_id != first:
                expected = f"epoch {claim.epoch} to begin with checkpoint id {first}"
                self._damage(Kind.CHECKPOINT_ID, offset, expected, f"it begins with {claim.first_checkpoint_id}")
        restored = claim.restored_checkpoint_id
        if restored != NO_CHECKPOINT and restored not in facts.kept:
            kept = ", ".join(map(str, sorted(facts.kept))) or "none"
            self._if_whole.append(
                (Kind.RESTORED, offset, f"a checkpoint to restore that is there ({kept})", f"checkpoint {restored}")
            )
        if restored in facts.lineage:
            del facts.lineage[facts.lineage.index(restored) + 1 :]
        elif restored in facts.kept or restored == NO_CHECKPOINT:  # one of an abandoned line, or none
            facts.lineage = [restored] if restored in facts.kept else []
        else:  # discarded since, and compacted away: others of its line may have been kept
            facts.lineage = [n for n in facts.lineage if n < restored]
        begun = current is not None or facts.whole  # else it may have claimed more ids since it began
        first_id = claim.first_checkpoint_id if begun else 0
        self._epoch = EpochFacts(claim.epoch, claim.instance, restored, first_id, claim.reserved_through)
        facts.epochs[claim.epoch] = self._epoch
        facts.last_epoch = max(facts.last_epoch, claim.epoch)
        self._reserved_through = max(self._reserved_through, claim.reserved_through)
        self._ended = None
        self._report.checked["epochs"] += 1
        return None

    def _nothing_owed(self) -> None:
        if self._owed is not None:
            (n, offset), self._owed = self._owed, None
            self._damage(Kind.CHECKPOINT_ID, offset, f"ids from {n}", f"ids from {n + 1}, and nothing derived as {n}")

    def _reserve_more(self, offset: int, current: EpochFacts, claim: EpochClaimed) -> None:
        """The same coordinator's next block of ids."""
        if claim.instance != current.instance:
            expected = f"a higher epoch than {current.number}, or more ids for coordinator {current.instance}"
            self._damage(Kind.EPOCH, offset, expected, f"epoch {claim.epoch} once more by coordinator {claim.instance}")
        if claim.first_checkpoint_id != self._reserved_through + 1:
            expected = f"more ids, from {self._reserved_through + 1}"
            self._damage(Kind.CHECKPOINT_ID, offset, expected, f"ids from {claim.first_checkpoint_id}")
        if claim.restored_checkpoint_id != self.facts.last_id:
            expected = f"the last completed checkpoint to stay {self.facts.last_id}"
            self._if_whole.append((Kind.RESTORED, offset, expected, f"checkpoint {claim.restored_checkpoint_id}"))
        self._reserve(claim.reserved_through)

    def _reserve(self, through: int) -> None:
        self._reserved_through = max(self._reserved_through, through)
        if self._epoch is not None:
            self._epoch.reserved_through = max(self._epoch.reserved_through, through)

    def _topics(self, offset: int, topic_ids: Mapping[str, str]) -> None:
        for topic, topic_id in topic_ids.items():
            known = self.facts.topic_ids.get(topic, topic_id)
            if known != topic_id:
                self._damage(Kind.TOPIC, offset, f"topic {topic} to have id {known}", f"id {topic_id}")
        self.facts.topic_ids = topic_ids

    def _in_epoch(self, offset: int, epoch: int, record: CheckpointLogRecord) -> None:
        """Only the owner of the log writes it, so all of it is of the newest epoch."""
        if self._epoch is not None and epoch != self._epoch.number:
            self._damage(Kind.EPOCH, offset, f"a record of epoch {self._epoch.number}", told(record))
        elif self._epoch is None:
            self._if_whole.append((Kind.EPOCH, offset, f"the claim of epoch {epoch} before it", told(record)))

    # ---- checkpoints

    def _prepare(self, offset: int, header: CheckpointPrepared) -> None:
        n = header.checkpoint_id
        self._in_epoch(offset, header.epoch, header)
        self._own_id(offset, n, header)
        known = self._known(offset, header, keep=True)
        self._report.checked["prepared checkpoints"] += 1
        self.facts.prepared[n] = known
        self.facts.undecided.add(n)
        self._reserve(header.reserved_through)
        for subtask, snapshot in known.subtasks.items():
            if len(snapshot.event_ranges) != 1:
                expected = f"one range of events in the batch of {subtask}"
                self._damage(Kind.BATCH, offset, expected, f"{len(snapshot.event_ranges)} in checkpoint {n}")

    def _complete(self, offset: int, header: CheckpointCompleted) -> None:
        facts, n = self.facts, header.checkpoint_id
        self._in_epoch(offset, header.epoch, header)
        self._report.checked["completed checkpoints"] += 1
        prepared = None
        if header.rescaled_from == NO_CHECKPOINT and header.committer:
            prepared = facts.prepared.get(n)
            if n not in facts.undecided:
                self._if_whole.append((Kind.BATCH, offset, f"checkpoint {n} to be prepared first", told(header)))
        elif header.rescaled_from != NO_CHECKPOINT:
            self._derive(offset, header)
        else:
            self._own_id(offset, n, header)
        known = self._known(offset, header)
        if prepared is not None:
            self._as_prepared(offset, prepared, known)
        if known.derived and (of := facts.checkpoints.get(header.rescaled_from)) is not None:
            for expected, found in losses(known, of):
                self._damage(Kind.DERIVED, offset, expected, found)
        self._feeds(offset, facts.last, known)
        facts.checkpoints[n] = known
        for gone in header.discarded:
            if gone < n and gone not in facts.checkpoints:
                facts.whole = False  # it has been compacted away
            elif gone not in facts.kept or gone == n:
                expected = f"only checkpoints to be discarded that are kept ({', '.join(map(str, sorted(facts.kept)))})"
                self._damage(Kind.DISCARD, offset, expected, f"checkpoint {n} discards {gone}")
        facts.commands_position = max(facts.commands_position, header.commands_position)
        facts.undecided.discard(n)
        facts.kept.add(n)
        insort(facts.lineage, n)
        if self._epoch is not None:
            self._epoch.completed.add(n)
        self._reserve(header.reserved_through)

    def _feeds(self, offset: int, before: KnownCheckpoint | None, known: KnownCheckpoint) -> None:
        """No position of a feed goes back, of operators that are still there."""
        there = {(o.operator, feed.query): feed.batch for o in known.header.operators for feed in o.feeds}
        operators = {o.operator for o in known.header.operators}
        for operator in () if before is None else before.header.operators:
            for feed in operator.feeds:
                found = there.get((operator.operator, feed.query), -1)
                if found < feed.batch and operator.operator in operators:
                    expected = (
                        f"batch {feed.batch} of query {feed.query} to {operator.operator} in checkpoint {known.id}"
                    )
                    self._damage(Kind.FEED, offset, expected, f"batches up to {found}")

    def _derive(self, offset: int, header: CheckpointCompleted) -> None:
        """Of the checkpoint that the epoch has restored, under the id that its claim has left out."""
        restored = NO_CHECKPOINT if self._epoch is None else self._epoch.restored
        owed, self._owed = self._owed, None
        if self.facts.whole and self._epoch is not None and (owed is None or owed[0] != header.checkpoint_id):
            self._damage(Kind.CHECKPOINT_ID, offset, "an id that its epoch has left out for it", told(header))
        if self._epoch is not None and header.rescaled_from != restored:
            expected = f"a checkpoint derived of {restored}, which the epoch restores"
            self._damage(Kind.RESTORED, offset, expected, f"one of {header.rescaled_from}")

    def _own_id(self, offset: int, n: int, header: CheckpointCompleted | CheckpointPrepared) -> None:
        epoch = self._epoch
        if n in self.facts.checkpoints or n in self.facts.prepared:
            self._damage(Kind.CHECKPOINT_ID, offset, "a checkpoint id that was not used before", told(header))
        elif epoch is not None and not epoch.first_id <= n <= epoch.reserved_through:
            expected = f"an id of the block of epoch {epoch.number}, {epoch.first_id} to {epoch.reserved_through}"
            if n < epoch.first_id:
                self._damage(Kind.CHECKPOINT_ID, offset, expected, told(header))
            else:  # compaction takes a discarded checkpoint away, and the ids that its record reserved
                self._if_whole.append((Kind.CHECKPOINT_ID, offset, expected, told(header)))

    def _known(
        self, offset: int, header: CheckpointCompleted | CheckpointPrepared, *, keep: bool = False
    ) -> KnownCheckpoint:
        """The checkpoint put together from its parts, which are checked."""
        n = header.checkpoint_id
        found = self._parts.get(n, {}) if keep else self._parts.pop(n, {})
        parts = {part: entry for part, entry in found.items() if part < header.parts}
        copied = self.facts.forked and self._epoch is None
        if sorted(parts) != list(range(header.parts)):
            lacking = sorted(set(range(header.parts)) - set(parts))
            expected = f"all {header.parts} parts of checkpoint {n} before it"
            where = self._if_whole if isinstance(header, CheckpointPrepared) else None
            found_text = f"part {', '.join(map(str, lacking))} is missing"
            if where is None:
                self._damage(Kind.PARTS, offset, expected, found_text)
            else:
                where.append((Kind.PARTS, offset, expected, found_text))
        subtasks: dict[SubtaskId, SubtaskSnapshot] = {}
        for _, (at, part) in sorted(parts.items()):
            for snapshot in part.subtasks:
                subtask = SubtaskId(part.operator, snapshot.subtask)
                first = subtasks.get(subtask)
                joined = snapshot if first is None else replace(first, inbox=(*first.inbox, *snapshot.inbox))
                subtasks[subtask] = joined if first is not None else stripped(joined)
                if first is None:
                    check_ranges(self._report, self._place, at, n, subtask, snapshot)
        inbox = {
            subtask: sum(e.count for e in snapshot.inbox) for subtask, snapshot in subtasks.items() if snapshot.inbox
        }
        known = KnownCheckpoint(header, offset, subtasks, inbox, copied)
        self._everybody(known, complete=len(parts) == header.parts)
        if known.taken_here:
            self._of_this_epoch(known)
        if known.is_savepoint:
            for subtask, snapshot in subtasks.items():
                check_savepoint_inbox(self._report, self._place, offset, n, subtask, snapshot)
        without = {subtask: replace(snapshot, inbox=()) for subtask, snapshot in subtasks.items()}
        return replace(known, subtasks=without)

    def _everybody(self, known: KnownCheckpoint, *, complete: bool) -> None:
        wanted = {SubtaskId(o.operator, i) for o in known.header.operators for i in range(o.parallelism)}
        odd = wanted - set(known.subtasks) if known.derived else wanted ^ set(known.subtasks)
        if complete and odd:
            names = ", ".join(map(str, sorted(odd)))
            expected = f"checkpoint {known.id} to hold each of its {len(wanted)} subtasks"
            self._damage(Kind.PARTS, known.offset, expected, f"{names} missing or not its own")

    def _of_this_epoch(self, known: KnownCheckpoint) -> None:
        """Nothing of an attempt that a replaced coordinator had started is in it, but for the ends of the finished."""
        header = known.header
        position = header.acks_position if isinstance(header, CheckpointCompleted) else 0
        if isinstance(header, CheckpointCompleted) and 0 < position < header.commands_position and not known.by_query:
            expected = f"commands executed before checkpoint {known.id} was decided, below offset {position}"
            self._damage(Kind.COMMAND, known.offset, expected, f"those below {header.commands_position}")
        inboxes = {operator.operator: operator.inbox_position for operator in header.operators}
        for subtask, snapshot in known.subtasks.items():
            if snapshot.epoch != header.epoch and not snapshot.finished and not known.by_query:
                expected = f"{subtask} in checkpoint {known.id} as an attempt of epoch {header.epoch}"
                found = f"attempt {snapshot.attempt} of epoch {snapshot.epoch}"
                self._damage(Kind.ATTEMPT, known.offset, expected, found)
            if position and not known.by_query and snapshot.ack_offset >= position:
                expected = f"the ack of {subtask} before checkpoint {known.id} was decided, below offset {position}"
                self._damage(Kind.ACK, known.offset, expected, f"an ack at offset {snapshot.ack_offset}")
            if snapshot.ack_offset < inboxes.get(subtask.operator, 0) and not snapshot.finished:
                expected = f"the inbox of {subtask.operator} in checkpoint {known.id} to begin at or before the ack of"
                expected += f" {subtask}, at offset {snapshot.ack_offset}"
                self._damage(Kind.ACK, known.offset, expected, f"offset {inboxes[subtask.operator]}")

    def _as_prepared(self, offset: int, prepared: KnownCheckpoint, known: KnownCheckpoint) -> None:
        """What completes is what was prepared, with what its batch has sent."""
        for subtask, snapshot in known.subtasks.items():
            before = prepared.subtasks.get(subtask)
            if before is not None and replace(snapshot, sent_sequence=before.sent_sequence) != before:
                expected = f"checkpoint {known.id} of {subtask} as it was prepared at offset {prepared.offset}"
                self._damage(Kind.BATCH, offset, expected, "something else")

    def _discard(self, offset: int, key: str) -> None:
        kind, _, rest = key.partition("/")
        if not rest.isdigit():
            return
        facts, n = self.facts, int(rest)
        if kind == "prepared":
            facts.undecided.discard(n)
        elif kind == "checkpoint":
            if n not in facts.checkpoints and n <= self._reserved_through:
                facts.whole = False  # it has been compacted away, and its discard not yet
            if facts.lineage and facts.lineage[-1] == n:
                expected = f"the last completed checkpoint, {n}, to be kept"
                self._damage(Kind.DISCARD, offset, expected, "it is discarded")
            facts.kept.discard(n)
            if n in facts.lineage:
                facts.lineage.remove(n)
