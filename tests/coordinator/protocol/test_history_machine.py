"""The fold over the checkpoint log against plain facts, however brokers compact it (protocol, sections 2, 3, 7.9).

The machine writes what coordinators write, one after the other; each successor reads what the broker has left. The
facts are written down beside it as they happen.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.checkpoint_log.history import History, Keyed, keyed
from penstock.schemas.checkpoints import (
    CheckpointCompleted,
    CheckpointPart,
    CommandExecuted,
    EpochClaimed,
    InboxEvents,
    JobFinished,
    JobOutcome,
    OperatorSnapshot,
    RunClaimed,
    SubtaskSnapshot,
)
from penstock.schemas.frames import pack
from penstock.schemas.ids import NO_CHECKPOINT, SubtaskId
from penstock.schemas.state import StateHandle
from tests.machines import explore
from tests.rounds import rounds

RETAINED = 2
RESERVED = 5
TOPICS = {"penstock.job.acks": "id-1"}


def compacted(log: list[Keyed], end: int, tombstones_below: int) -> list[Keyed]:
    """What a broker leaves of a log whose first ``end`` records it has compacted, by looking at each key's newest."""
    left = []
    for at, (key, record) in enumerate(log):
        superseded = at < end and any(other == key for other, _ in log[at + 1 : end])
        if not superseded and not (record is None and at < min(end, tombstones_below)):
            left.append((key, record))
    return left


class HistoryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Keyed] = []
        self.written: list[Keyed] = []
        """The log as nobody has compacted it."""
        self.history = History()
        """Of the coordinator at work, which applies its own commits."""
        self.epoch = 0
        self.reserved_through = 0
        self.restored = NO_CHECKPOINT
        self.completed_since: list[int] = []
        """Since the epoch began."""
        self.line: list[int] = []
        """What the present line goes back to."""
        self.kept: dict[int, tuple[CheckpointCompleted, dict[SubtaskId, SubtaskSnapshot]]] = {}
        self.next_id = 0
        self.skipped: list[int] = []
        """Ids of this epoch that are pending still: savepoints may complete behind newer checkpoints."""
        self.run: RunClaimed | None = None
        self.acks_end = 0
        self.executed: dict[int, CommandExecuted] = {}
        self.commands_position = 0
        self.finished: JobFinished | None = None

    @initialize()
    def the_first_epoch_begins(self) -> None:
        self._claim(NO_CHECKPOINT)

    def _commit(self, *records: Keyed) -> None:
        self.log += records
        self.written += records
        self.history.apply(records)

    @property
    def last(self) -> int:
        """Section 2: what this epoch completed, else what its claim restored."""
        return max(self.completed_since, default=self.restored)

    # ---- what coordinators write

    def _claim(self, restored: int) -> None:
        self.epoch += 1
        self.next_id = self.reserved_through + 1
        self.reserved_through = self.next_id + RESERVED
        self.restored, self.completed_since, self.skipped, self.finished = restored, [], [], None
        if restored == NO_CHECKPOINT:
            self.line = []
        elif restored in self.line:
            self.line = [n for n in self.line if n <= restored]
        else:
            self.line = [restored]
        self._commit(*keyed(self._claimed()))

    def _claimed(self) -> EpochClaimed:
        return EpochClaimed(self.epoch, self.last, self.next_id, self.reserved_through, TOPICS, f"i{self.epoch}", "why")

    @precondition(lambda self: self.finished is None)
    @rule(run=st.integers(0, 3))
    def a_run_is_claimed(self, run: int) -> None:
        self.acks_end += 1
        self.run = RunClaimed(f"run-{run}", self.acks_end)
        self._commit(*keyed(self.run))

    @precondition(lambda self: self.finished is None)
    @rule(accepted=st.booleans())
    def a_command_is_executed(self, accepted: bool) -> None:
        done = CommandExecuted(self.acks_end, f"command-{self.acks_end}", accepted, "outcome")
        self.acks_end += 1
        self.executed[done.offset] = done
        self._commit(*keyed(done))

    @precondition(lambda self: self.finished is None)
    @rule(
        parts=st.integers(1, 3),
        savepoint=st.booleans(),
        late=st.booleans(),
        commands_left=st.integers(0, 2),
        ahead=st.integers(0, 4),
    )
    def a_checkpoint_completes(self, parts: int, savepoint: bool, late: bool, commands_left: int, ahead: int) -> None:
        """With its parts, its discards, and the commands that nobody will ask for again."""
        if late and self.skipped:
            n, savepoint, ahead = self.skipped.pop(), True, 0  # a newer one has reserved as many more
        else:
            self._reserve()
            n, self.next_id = self.next_id, self.next_id + 1
        newest = [i for i in self.line if not self.kept[i][0].savepoint][-RETAINED if savepoint else 1 - RETAINED :]
        gone = [i for i, (header, _) in self.kept.items() if i not in newest and not header.savepoint]
        subsumed = self.history.subsumed_by(n, RETAINED, savepoint=savepoint)
        assert subsumed == gone, "the last K of the lineage stay, and savepoints"
        position = max(self.commands_position, self.acks_end - commands_left)
        self.reserved_through = max(self.reserved_through, n + ahead)
        header = CheckpointCompleted(
            self.epoch, n, savepoint, 10 * n, 10 * n + 1, parts, (OperatorSnapshot("op", 2 * parts, None, n, 128, ()),),
            position, tuple(gone), self.reserved_through,
        )  # fmt: skip
        pieces, subtasks = snapshots(n, parts)
        tombstones = self.history.checkpoint_tombstones(gone, position)
        self._commit(*keyed(*pieces, header), *tombstones)
        self.kept = {i: k for i, k in self.kept.items() if i not in gone}
        self.line = [i for i in self.line if i not in gone]
        self.kept[n] = header, subtasks
        self.line.append(n)
        self.line.sort()
        self.completed_since.append(n)
        self.commands_position = position
        self.executed = {offset: done for offset, done in self.executed.items() if offset >= position}

    @precondition(lambda self: self.finished is None and set(self.kept) - {self.last})
    @rule(data=st.data())
    def a_checkpoint_is_given_up(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from(sorted(set(self.kept) - {self.last})))
        self._commit(*self.history.checkpoint_tombstones([n], commands_below=0))
        del self.kept[n]
        self.line = [i for i in self.line if i != n]

    def _reserve(self) -> None:
        """The block of ids is used up."""
        if self.next_id > self.reserved_through:
            self.reserved_through = self.next_id + RESERVED
            self._commit(*keyed(self._claimed()))

    @precondition(lambda self: self.finished is None)
    @rule()
    def a_savepoint_stays_pending(self) -> None:
        self._reserve()
        self.skipped.append(self.next_id)
        self.next_id += 1

    @precondition(lambda self: self.finished is None)
    @rule()
    def a_savepoint_completes_behind_a_newer_checkpoint(self) -> None:
        self.a_savepoint_stays_pending()
        self.a_checkpoint_completes(1, False, False, 0, 1)
        self.a_checkpoint_completes(2, True, True, 0, 1)

    @precondition(lambda self: self.finished is None)
    @rule(outcome=st.sampled_from(JobOutcome))
    def the_job_ends(self, outcome: JobOutcome) -> None:
        self.finished = JobFinished(self.epoch, outcome, "cause", "run")
        self._commit(*keyed(self.finished))

    # ---- what brokers and successors do

    @precondition(lambda self: len(self.log) > 3)
    @rule(data=st.data())
    def the_broker_compacts(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(0, len(self.log)))
        self.log = compacted(self.log, end, data.draw(st.integers(0, end)))

    @rule(data=st.data(), way=st.sampled_from(["latest", "latest", "named", "fresh"]))
    def another_epoch_begins(self, data: st.DataObject, way: str) -> None:
        """In a new process, which knows only the log."""
        self.history = History.of(self.log)
        restored = self.last
        if way == "named" and self.kept:
            restored = data.draw(st.sampled_from(sorted(self.kept)))
        elif way == "fresh":
            restored = NO_CHECKPOINT
        self._claim(restored)

    # ---- what must be so

    def _facts(self) -> tuple[object, ...]:
        return (
            self.epoch, TOPICS, self.last, self.kept, self.reserved_through, self.run, self.executed,
            self.commands_position, self.finished,
        )  # fmt: skip

    @invariant()
    def the_coordinators_own_fold_and_its_successors_tell_the_facts(self) -> None:
        if self.epoch:
            assert told(self.history) == self._facts()
            assert told(History.of(self.log)) == self._facts()
            assert told(History.of(self.written)) == self._facts()

    @invariant()
    def a_log_compacted_up_to_anywhere_tells_the_facts(self) -> None:
        if self.epoch:
            for end in {len(self.log), *range(max(0, len(self.log) - 6), len(self.log))}:
                for tombstones_below in (0, end // 2, end - 1, end):
                    left = compacted(self.log, end, tombstones_below)
                    assert told(History.of(left)) == self._facts(), f"compacted up to {end}, {tombstones_below}"

    @invariant()
    def what_is_over_leaves_nothing_in_a_compacted_log(self) -> None:
        """G7: the log does not grow with a job's age."""
        keys = {key for key, _ in compacted(self.written, len(self.written), len(self.written))}
        headers = {f"checkpoint/{n}" for n in self.kept}
        parts = {f"checkpoint/{n}/{part}" for n, (header, _) in self.kept.items() for part in range(header.parts)}
        commands = {f"command/{offset}" for offset in self.executed}
        assert keys - {"epoch", "run", "finished"} == headers | parts | commands


def told(history: History) -> tuple[object, ...]:
    """All that a start goes by."""
    kept = {n: (c.header, dict(c.subtasks)) for n, c in history.checkpoints.items()}
    last = history.last
    assert history.last_id == (NO_CHECKPOINT if last is None else last.id)
    return (
        history.epoch, history.topic_ids, history.last_id, kept, history.reserved_through, history.run,
        history.executed, history.commands_position, history.finished,
    )  # fmt: skip


def snapshots(n: int, parts: int) -> tuple[list[CheckpointPart], dict[SubtaskId, SubtaskSnapshot]]:
    """Subtask 0's inbox is in pieces all over the parts; each part has a subtask of its own."""
    inbox = tuple(InboxEvents(n, i, 1, *pack([b"%d" % i])[1:]) for i in range(parts))
    whole = [snapshot(n, index) for index in range(parts + 1)]
    pieces = [
        CheckpointPart(n, i, "op", (replace(whole[0], inbox=inbox[i : i + 1]), whole[i + 1])) for i in range(parts)
    ]
    subtasks = {SubtaskId("op", index): s for index, s in enumerate(whole)}
    subtasks[SubtaskId("op", 0)] = replace(whole[0], inbox=inbox)
    return pieces, subtasks


def snapshot(n: int, index: int) -> SubtaskSnapshot:
    return SubtaskSnapshot(index, n, 1, 0, n, StateHandle(1, inline=b"s"), n, (), n, n, (), False)


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_the_fold_tells_the_facts_whatever_is_left_of_the_log(round_: int) -> None:
    explore(HistoryMachine, round_, examples=50, steps=25)
