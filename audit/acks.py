"""The acks topic against the checkpoint log: who said Hello, who acknowledged, what was sent (sections 4, 7 and 8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..schemas.acks import (
    AcksRecord,
    BatchEventFrame,
    CheckpointAck,
    Command,
    CoordinatorHeartbeat,
    FromAttempt,
    Heartbeat,
    Hello,
    OperatorEventFrame,
    RunStarted,
)
from ..schemas.checkpoints import SubtaskSnapshot
from ..schemas.errors import UnreadableRecord
from ..schemas.frames import unpack
from ..schemas.ids import NO_ATTEMPT, SubtaskId
from ..schemas.state import Sender
from .batches import BatchesCheck
from .checkpoint_index import KnownCheckpoint, LogFacts, digest_of
from .record_summary import told
from .report import Extent, Kind, Place, Report

_SHARED = (
    "event_position", "event_ranges", "handled_through", "sent_sequence", "data_positions", "finished", "inputs_ended",
)  # fmt: skip
"""What a part of a checkpoint takes over from its ack as it is."""


@dataclass(frozen=True, slots=True)
class Said:
    """A Hello, as far as Starts and Stops are judged by it."""

    subtask: SubtaskId
    nonce: str


@dataclass(frozen=True, slots=True)
class Reported:
    """The highest handled-through that an attempt reported, and where."""

    through: int
    offset: int


class AcksCheck:
    """Fed every readable record in order; ``unreadable`` the others; then ``finish``."""

    def __init__(self, report: Report, place: Place, extent: Extent, facts: LogFacts) -> None:
        self._report, self._place, self._extent, self._facts = report, place, extent, facts
        self.hellos: dict[int, Said] = {}
        """By offset, which is the attempt's id."""
        self.handled: dict[SubtaskId, dict[tuple[int, int], Reported]] = {}
        """Of each subtask, by epoch and attempt."""
        self._acks: dict[int, list[tuple[KnownCheckpoint, SubtaskId, SubtaskSnapshot]]] = {}
        self._sent: dict[Sender, int] = {}
        self._reports: dict[Sender, Reported] = {}
        """The newest heartbeat of each sender."""
        self._newest_ack: dict[Sender, CheckpointAck] = {}
        """Of the highest checkpoint."""
        self._batches = BatchesCheck(report, place, extent, facts)
        self._runs = dict(facts.runs)
        self._commands = dict(facts.commands)
        for known in facts.checkpoints.values():
            self._expect_acks(known)
        self._retained()

    def _expect_acks(self, known: KnownCheckpoint) -> None:
        if known.by_query or not known.taken_here:
            return
        for subtask, snapshot in known.subtasks.items():
            if snapshot.attempt == NO_ATTEMPT:
                continue  # it has ended with a rescaling, and never ran
            if snapshot.ack_offset < self._extent.begin:
                self._report.unjudged["acks that have been truncated"] += 1
            else:
                self._acks.setdefault(snapshot.ack_offset, []).append((known, subtask, snapshot))

    def _retained(self) -> None:
        """What a restore of a kept checkpoint reads again must be there."""
        begin, commands = self._extent.retained, self._facts.commands_position
        for n in sorted(self._facts.kept):
            known = self._facts.checkpoints[n]
            if not known.is_savepoint and known.inbox_position < begin and not known.copied:
                expected = f"the inbox of checkpoint {n} from offset {known.inbox_position}"
                self._report.damage(Kind.RETENTION, self._place, begin, expected, f"the topic begins at {begin}")
        if self._facts.lineage and commands < begin:
            expected = f"the commands behind offset {commands}, which no checkpoint has seen executed"
            self._report.damage(Kind.RETENTION, self._place, begin, expected, f"the topic begins at {begin}")

    # ---- records

    def unreadable(self, offset: int) -> None:
        self._report.void["unreadable records"] += 1
        self._batches.read(offset, None)

    def read(self, offset: int, record: AcksRecord) -> None:
        self._report.checked["acks records"] += 1
        self._batches.read(offset, record)
        for known, subtask, snapshot in self._acks.pop(offset, ()):
            self._acknowledged(offset, record, known, subtask, snapshot)
        if offset in self._runs:
            run, claimed_at = self._runs.pop(offset)
            if not isinstance(record, RunStarted) or record.run != run:
                self._damage(Kind.RUN, offset, f"RunStarted of {run}, claimed at offset {claimed_at}", told(record))
        if offset in self._commands:
            command, executed_at = self._commands.pop(offset)
            if not isinstance(record, Command) or record.command != command:
                expected = f"command {command}, executed at offset {executed_at} of the checkpoint log"
                self._damage(Kind.COMMAND, offset, expected, told(record))
        match record:
            case Hello():
                self.hellos[offset] = Said(record.subtask_id, record.nonce)
            case CoordinatorHeartbeat():
                self._claimed(offset, record.epoch, record)
            case BatchEventFrame():
                self._report.checked["events to coordinators"] += record.count
                self._unpacks(offset, record)
            case _ if isinstance(record, FromAttempt):
                self._from_attempt(offset, record)
            case _:
                pass

    def _from_attempt(self, offset: int, record: FromAttempt) -> None:
        sender = record.sender
        if not self._claimed(offset, sender.epoch, record):
            return
        said = self.hellos.get(sender.attempt)
        if sender.attempt >= self._extent.begin and (said is None or said.subtask != sender.subtask_id):
            expected = f"an attempt of {sender.subtask_id} that said Hello at offset {sender.attempt}"
            self._damage(Kind.ATTEMPT, offset, expected, f"{told(record)}, and no such Hello")
        match record:
            case OperatorEventFrame():
                self._frame(offset, record)
            case Heartbeat() | CheckpointAck():
                self._goes_on(offset, record)
                reported = self.handled.setdefault(sender.subtask_id, {})
                key = sender.epoch, sender.attempt
                if record.handled_through > (reported[key].through if key in reported else -1):
                    reported[key] = Reported(record.handled_through, offset)
            case _:
                pass

    def _goes_on(self, offset: int, record: Heartbeat | CheckpointAck) -> None:
        """Handled-through never goes back: not from heartbeat to heartbeat (between two attempts it is 0), nor from
        checkpoint to checkpoint. An ack names that of its snapshot, which heartbeats before it may have passed."""
        sender, through = record.sender, record.handled_through
        if isinstance(record, Heartbeat):
            before = self._reports.get(sender)
            if before is not None and 0 < through < before.through:
                expected = f"{sender.subtask_id} to have handled {before.through} events, as at offset {before.offset}"
                self._damage(Kind.HANDLED, offset, expected, told(record))
            if before is None or through > before.through:
                self._reports[sender] = Reported(through, offset)
            return
        newest = self._newest_ack.setdefault(sender, record)
        older, newer = sorted((newest, record), key=lambda ack: ack.checkpoint_id)
        if older.checkpoint_id < newer.checkpoint_id and newer.handled_through < older.handled_through:
            expected = f"{sender.subtask_id} to have handled {older.handled_through} events in checkpoint"
            expected += f" {older.checkpoint_id}, and no fewer in {newer.checkpoint_id}"
            self._damage(Kind.HANDLED, offset, expected, f"{newer.handled_through}")
        self._newest_ack[sender] = newer

    def _claimed(self, offset: int, epoch: int, record: AcksRecord) -> bool:
        """Whether somebody has claimed that epoch, as far as can be known."""
        if epoch <= self._facts.last_epoch and epoch >= 1:
            return True
        if epoch < 1 or offset < self._extent.settled:
            expected = f"an epoch from 1 to {self._facts.last_epoch}"
            self._damage(Kind.EPOCH, offset, expected, told(record))
        return False

    def _frame(self, offset: int, frame: OperatorEventFrame) -> None:
        sender = frame.sender
        self._report.checked["events to coordinators"] += frame.count
        self._unpacks(offset, frame)
        due = self._sent.get(sender)
        if due is None:
            due = 0 if sender.attempt >= self._extent.begin else frame.sequence
        if frame.sequence + frame.count <= due:
            self._report.void["events to coordinators that stand twice"] += frame.count
            return
        if frame.sequence != due:
            self._damage(Kind.SEQUENCE, offset, f"event {due} of {sender.subtask_id} next", told(frame))
        self._sent[sender] = frame.sequence + frame.count

    def _unpacks(self, offset: int, frame: OperatorEventFrame | BatchEventFrame) -> None:
        try:
            unpack(frame.count, frame.lengths, frame.payload)
        except UnreadableRecord as error:
            self._damage(Kind.FRAME, offset, "a frame that holds what it claims", str(error))

    def _acknowledged(
        self, offset: int, record: AcksRecord, known: KnownCheckpoint, subtask: SubtaskId, snapshot: SubtaskSnapshot
    ) -> None:
        """The ack that a part of a checkpoint was made from."""
        self._report.checked["acks of completed checkpoints"] += 1
        sender = Sender(subtask.operator, subtask.index, snapshot.attempt, snapshot.epoch, snapshot.generation)
        wanted = f"the ack of checkpoint {known.id} by {subtask} attempt {sender.attempt} generation"
        wanted += f" {sender.full_generation}"
        if not isinstance(record, CheckpointAck) or record.sender != sender:
            return self._damage(Kind.ACK, offset, wanted, told(record))
        if record.checkpoint_id != known.id and not (snapshot.finished and record.checkpoint_id < known.id):
            return self._damage(Kind.ACK, offset, wanted, told(record))
        if snapshot.epoch != known.header.epoch:
            return None  # of an end that was restored: a rescaling may have taken its positions away
        odd = [name for name in _SHARED if getattr(record, name) != getattr(snapshot, name)]
        odd += ["state"] if digest_of(record.state) != snapshot.state else []
        if odd:
            said = ", ".join(f"{name} {getattr(record, name)}" for name in odd if name != "state") or "another state"
            held = ", ".join(f"{name} {getattr(snapshot, name)}" for name in odd if name != "state")
            expected = f"{wanted}, with {held or 'its state'} as in the checkpoint log"
            return self._damage(Kind.ACK, offset, expected, said)
        due = self._sent.get(sender, 0 if sender.attempt >= self._extent.begin else record.sent_sequence)
        if record.sent_sequence > due:
            expected = f"{subtask} to have sent no more than stands before, up to event {due}"
            self._damage(Kind.SEQUENCE, offset, expected, f"its ack says {record.sent_sequence}")
        return None

    # ---- the end

    def finish(self) -> None:
        self._batches.finish()
        for offset, entries in sorted(self._acks.items()):
            for known, subtask, snapshot in entries:
                expected = f"the ack of checkpoint {known.id} by {subtask} attempt {snapshot.attempt}"
                self._damage(Kind.ACK, offset, expected, self._nothing_at(offset))
        self._missing(Kind.RUN, "RunStarted of", self._runs.items())
        self._missing(Kind.COMMAND, "command", self._commands.items())

    def _missing(self, kind: Kind, what: str, entries: Iterable[tuple[int, tuple[str, int]]]) -> None:
        for offset, (name, log_offset) in sorted(entries):
            if offset < self._extent.begin or not self._facts.whole:
                self._report.unjudged["runs and commands that have been truncated"] += 1
            else:
                expected = f"{what} {name}, named at offset {log_offset} of the checkpoint log"
                self._damage(kind, offset, expected, self._nothing_at(offset))

    def _nothing_at(self, offset: int) -> str:
        return "nothing readable" if offset < self._extent.end else f"the end of the topic, {self._extent.end}"

    def _damage(self, kind: Kind, offset: int, expected: str, found: str) -> None:
        self._report.damage(kind, self._place, offset, expected, found)
