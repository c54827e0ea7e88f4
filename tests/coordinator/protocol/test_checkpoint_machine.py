"""Pending checkpoints, and how each ends, against plain lists of who has done what (protocol, section 7).

The core is played by the driver. After each step the model says from scratch what everybody was told, in which order,
what is pending, what was committed and what is kept; all of it must be so, to the letter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import CoordinatorRaised, FutureCompleted, FutureFailed, StateNotStored
from penstock.coordinator.protocol.inputs import StateStored as Stored
from penstock.coordinator.protocol.pending import Step
from penstock.schemas.acks import CheckpointAck, CheckpointDecline, CommandKind, Failed, RunStarted
from penstock.schemas.checkpoints import CheckpointCompleted, CheckpointPart, CommandExecuted, SubtaskSnapshot
from penstock.schemas.events import CheckpointAborted, TriggerCheckpoint
from penstock.schemas.events import CheckpointCompleted as CompletedNotice
from penstock.schemas.ids import NO_CHECKPOINT, SubtaskId
from penstock.schemas.state import StateHandle
from tests.machines import explore
from tests.rounds import rounds

from .checkpoint_lists import (
    CONCURRENT,
    LARGE,
    MIN_PAUSE,
    NAMES,
    SILENCE_S,
    SUBTASKS,
    TIMEOUT,
    TOLERABLE,
    CheckpointLists,
    identity,
)
from .driver import Task


class CheckpointMachine(CheckpointLists, RuleBasedStateMachine):
    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        CheckpointLists.__init__(self)

    @initialize()
    def everybody_starts(self) -> None:
        self.script.read(RunStarted("run-1", "here"))
        for subtask in SUBTASKS:
            self._hello(subtask)

    # ---- time

    @rule(seconds=st.integers(1, 8))
    def time_passes(self, seconds: int) -> None:
        """Everybody's heartbeats arrive."""
        for _ in range(seconds):
            self.script.tasks = dict(self.live)
            self.script.live(1)
            self._settle()

    @rule()
    def it_becomes_time_for_a_checkpoint(self) -> None:
        """Who is missing comes back, and time passes until one may begin."""
        self.who_is_missing_says_hello()
        pause = 0.0 if self.completed_at is None else self.completed_at + MIN_PAUSE
        while self.script.now < max(self.next_at, pause) and self._may_trigger_later():
            self.time_passes(1)

    @rule(data=st.data(), large=st.booleans())
    def a_checkpoint_goes_its_way(self, data: st.DataObject, large: bool) -> None:
        """As far as it gets: everybody does their part, but perhaps one."""
        if not self.pending:
            self.it_becomes_time_for_a_checkpoint()
        self.coordinators_complete(large)
        while self.uploads:
            self.a_coordinators_state_is_stored_or_not(data, True)
        if any(p.has_markers for p in self.pending):
            self.everybody_acks(data)

    @rule(data=st.data(), cut=st.booleans())
    def one_completes_while_the_next_awaits_its_coordinators(self, data: st.DataObject, cut: bool) -> None:
        self.a_checkpoint_goes_its_way(data, False)
        self.it_becomes_time_for_a_checkpoint()
        self.coordinators_complete(False)
        older = [p.id for p in self.pending if p.has_markers]
        self.it_becomes_time_for_a_checkpoint()
        if older and cut and self._owes("one"):
            self._cut(self.pending[-1].id, "one", False)
        for subtask in sorted(self.live):
            if older and subtask in self.live:
                self._ack(self.live[subtask], older[-1])

    @rule()
    def the_newer_one_completes_first(self) -> None:
        for _ in range(2):
            self.it_becomes_time_for_a_checkpoint()
            self.coordinators_complete(False)
        newest = self.pending[-1].id if self.pending else 0
        for subtask in sorted(self.live):
            if subtask in self.live:
                self._ack(self.live[subtask], newest)

    def _may_trigger_later(self) -> bool:
        ready = len(self.live) == len(SUBTASKS) and all(p.has_markers for p in self.pending)
        return ready and len(self.pending) < CONCURRENT

    def _log_is_away(self, data: st.DataObject) -> None:
        seconds = data.draw(st.sampled_from([SILENCE_S, TIMEOUT]))
        for checkpoint in self.pending:
            checkpoint.log_was_away = True
        self.script.advance(seconds)
        self._settle()

    # ---- the coordinators

    def _ids(self, data: st.DataObject) -> int:
        """Mostly one that is pending, else any that ever was, or one to come."""
        now = [p.id for p in self.pending]
        others = [*self.used_ids[-6:], max(self.used_ids, default=0) + 1]
        ids = now if now and data.draw(st.integers(0, 3)) > 0 else others
        return data.draw(st.sampled_from(ids))

    @rule(data=st.data(), operator=st.sampled_from(NAMES), large=st.booleans())
    def coordinator_completes(self, data: st.DataObject, operator: str, large: bool) -> None:
        self._cut(self._ids(data), operator, large)

    @precondition(lambda self: self._owes("one") or self._owes("two"))
    @rule(large=st.booleans())
    def coordinators_complete(self, large: bool) -> None:
        for operator in NAMES:
            for checkpoint in list(self.pending):
                self._cut(checkpoint.id, operator, large)

    def _cut(self, n: int, operator: str, large: bool) -> None:
        state = LARGE if large else b"small"
        known = len(self.script.effects)
        self.script.handle(FutureCompleted(operator, n, state))
        checkpoint = self._find(n)
        stores = [e for e in self.script.effects[known:] if isinstance(e, effects.StoreState)]
        if checkpoint is None or operator in checkpoint.cut_by:
            assert stores == []
            return
        checkpoint.cut_by.append(operator)
        assert [(e.operator, e.checkpoint_id) for e in stores] == ([(operator, n)] if large else [])
        for store in stores:
            checkpoint.storing.append(operator)
            self.uploads.append((operator, n, store.location))
        self._hand_over()
        if checkpoint.has_markers:
            self._notice("marker", n)
        self._settle()

    def _coordinator_fails_its_future(self, data: st.DataObject) -> None:
        n, operator = self._ids(data), data.draw(st.sampled_from(NAMES))
        self.script.handle(FutureFailed(operator, n, "no"))
        checkpoint = self._find(n)
        if checkpoint is not None and operator not in checkpoint.cut_by:
            self._abort([checkpoint], countable=True)
        self._settle()

    @precondition(lambda self: self.uploads)
    @rule(data=st.data(), well=st.integers(0, 3))
    def a_coordinators_state_is_stored_or_not(self, data: st.DataObject, well: int) -> None:
        upload = data.draw(st.sampled_from(self.uploads))
        self.uploads.remove(upload)
        operator, n, location = upload
        if well:
            self.script.handle(Stored(operator, n, StateHandle(len(LARGE), location=location)))
        else:
            self.script.handle(StateNotStored(operator, n, "full"))
        checkpoint = self._find(n)
        if checkpoint is not None and operator in checkpoint.storing:
            checkpoint.storing.remove(operator)
            if not well:
                self._abort([checkpoint], countable=True)
        self._settle()

    def _coordinator_raises(self, data: st.DataObject) -> None:
        """One of an earlier epoch may: it has been rolled back."""
        epoch = data.draw(st.integers(self.epoch - 1, self.epoch))
        self.script.handle(CoordinatorRaised("one", epoch, "call_later", "boom"))
        if epoch == self.epoch:
            self._fail_over_globally()
        self._settle()

    # ---- the subtasks

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        task = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self._ack(task, self._ids(data))

    @precondition(lambda self: self.live and any(p.has_markers for p in self.pending))
    @rule(data=st.data())
    def everybody_acks(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from([p.id for p in self.pending if p.has_markers]))
        for subtask in data.draw(st.permutations(sorted(self.live))):
            if subtask in self.live:
                self._ack(self.live[subtask], n)

    def _ack(self, task: Task, n: int) -> None:
        offset = len(self.script.acks)
        self.script.read(task.ack(n))
        checkpoint = self._find(n)
        if checkpoint is not None and checkpoint.has_markers:
            checkpoint.acked_by.setdefault(task.subtask, (task.sender, offset))
        self._settle()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def somebody_else_acks(self, data: st.DataObject) -> None:
        """Older attempts and generations, and senders that never were: whatever is not the current attempt."""
        task = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        right = task.sender
        forged = [
            replace(right, attempt=right.attempt + 1), replace(right, attempt=right.attempt - 1),
            replace(right, generation=right.generation + 1), replace(right, generation=right.generation - 1),
            replace(right, epoch=right.epoch - 1), replace(right, subtask=9), replace(right, operator="nobody"),
            replace(right, subtask=-1),
        ]  # fmt: skip
        current = [t.sender for t in self.live.values()]
        sender = data.draw(st.sampled_from(forged + self.past_senders[-6:]).filter(lambda s: s not in current))
        n = self._ids(data)
        records: list[CheckpointAck | CheckpointDecline | Failed] = [task.ack(n), task.decline(n), task.failed()]
        self.script.read(replace(data.draw(st.sampled_from(records)), sender=sender))
        self._settle()

    def _decline(self, data: st.DataObject) -> None:
        if not self.live:
            return
        task = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        n = self._ids(data)
        self.script.read(task.decline(n))
        checkpoint = self._find(n)
        if checkpoint is not None:
            self._abort([checkpoint], countable=True)
        self._settle()

    def _declines_in_a_row(self, data: st.DataObject) -> None:
        for _ in range(TOLERABLE + 1):
            self.it_becomes_time_for_a_checkpoint()
            self.coordinators_complete(False)
            for checkpoint in self.pending[:1]:
                self.script.read(next(iter(self.live.values())).decline(checkpoint.id))
                self._abort([checkpoint], countable=True)
                self._settle()

    def _subtask_fails(self, data: st.DataObject) -> None:
        if not self.live:
            return
        task = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self.script.read(task.failed())
        self._fail_region(task.subtask)
        self._settle()

    def _fail_region(self, subtask: SubtaskId) -> None:
        self._abort(list(self.pending))
        del self.live[subtask]

    def _instance_says_hello(self, data: st.DataObject) -> None:
        self._hello(data.draw(st.sampled_from(SUBTASKS)))

    @precondition(lambda self: len(self.live) < len(SUBTASKS))
    @rule()
    def who_is_missing_says_hello(self) -> None:
        for subtask in SUBTASKS:
            if subtask not in self.live:
                self._hello(subtask)

    def _hello(self, subtask: SubtaskId) -> None:
        task = self.script.hello(subtask)
        if subtask in self.live:
            self._fail_region(subtask)
        assert task.started, "section 5: the newest Hello is answered"
        self.newest[subtask] = self.live[subtask] = task
        self.past_senders.append(task.sender)
        self._settle()

    @rule(
        data=st.data(),
        what=st.sampled_from(
            ["log_is_away", "coordinator_fails_its_future", "coordinator_raises", "decline", "declines_in_a_row",
             "subtask_fails", "instance_says_hello", "another_process_takes_over"]
        ),
    )  # fmt: skip
    def trouble(self, data: st.DataObject, what: str) -> None:
        """One rule for all of it, or next to no checkpoint would complete."""
        getattr(self, f"_{what}")(data)

    # ---- savepoints and takeovers

    @rule()
    def a_savepoint_is_asked_for(self) -> None:
        self.asked.append(len(self.script.acks))
        self.script.command(CommandKind.SAVEPOINT)
        self._settle()

    def _another_process_takes_over(self, data: st.DataObject) -> None:
        """What was pending is forgotten; a Hello behind the last checkpoint's inbox position is answered again, so that
        the same attempt lives on in another generation; commands without an effect are executed again."""
        self.restarts += 1
        self.script.restart(instance=f"instance-{self.restarts}")
        self._begin_epoch()
        self.live = {s: t for s, t in self.newest.items() if t.attempt >= self.reread_from}
        self.past_senders += [task.sender for task in self.live.values()]
        self.uploads.clear()
        if self.completed:
            self._reset_told()
        self._settle()

    # ---- what must be so

    def _new(self, what: object, log: list[Any]) -> list[Any]:
        """What has come since the last look."""
        begin, self.looked_through[what] = self.looked_through.get(what, 0), len(log)
        return log[begin:]

    @invariant()
    def it_is_pending_what_the_lists_say(self) -> None:
        job = self.script.job
        assert job.current.number == self.epoch
        assert job.schedule.failures_in_a_row == self.failures_in_a_row
        assert list(job.current.pending) == [p.id for p in self.pending]
        for mine, its in zip(self.pending, job.current.pending.values(), strict=True):
            assert (its.savepoint, its.command) == (mine.savepoint, mine.command)
            assert its.step is (Step.ACKS if mine.has_markers else Step.CALLING)
            acked = {subtask: _identity_in(snapshot) for subtask, snapshot in its.acks.items()}
            assert acked == {subtask: identity(*by) for subtask, by in mine.acked_by.items()}

    @invariant()
    def everybody_was_told_once_and_in_order(self) -> None:
        words = {
            effects.CallCheckpoint: "checkpoint", effects.CallComplete: "complete", effects.CallAborted: "aborted",
            effects.CallReset: "reset",
        }  # fmt: skip
        for call in self._new("calls", self.script.all_calls):
            if type(call) in words:
                self.heard[call.operator].append((words[type(call)], call.checkpoint_id))
        for operator in NAMES:
            assert self.heard[operator] == self.told[operator]
        kinds = {TriggerCheckpoint: "marker", CompletedNotice: "complete", CheckpointAborted: "aborted"}
        for subtask in SUBTASKS:
            log = [r for r in self._new(subtask, self.script.events_log[subtask]) if type(r) in kinds]
            self.read[subtask] += [(kinds[type(r)], r.checkpoint_id) for r in log]
            assert self.read[subtask] == self.noticed[subtask]

    @invariant()
    def each_completed_once_and_the_right_ones_are_kept(self) -> None:
        assert [c.checkpoint_id for c in self.script.committed(CheckpointCompleted)] == self.completed
        history = self.script.job.history
        assert sorted(history.checkpoints) == sorted(i for i, _ in self.kept)
        assert history.last_id == max(self.completed, default=NO_CHECKPOINT)
        executed = self.script.committed(CommandExecuted)
        assert [e.offset for e in executed if not e.accepted] == self.refused
        assert [(e.offset, e.checkpoint_id) for e in executed if e.accepted] == self.granted

    @invariant()
    def what_is_committed_is_what_was_acked(self) -> None:
        for _, record in self._new("log", self.script.log):
            if isinstance(record, CheckpointPart):
                for snapshot in record.subtasks:
                    subtask = SubtaskId(record.operator, snapshot.subtask)
                    self.committed[record.checkpoint_id, subtask] = _identity_in(snapshot)
        assert self.committed == self.acked


def _identity_in(snapshot: SubtaskSnapshot) -> tuple[int, ...]:
    return snapshot.attempt, snapshot.epoch, snapshot.generation, snapshot.ack_offset


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_checkpoints_end_as_the_lists_of_who_did_what_say(round_: int) -> None:
    explore(CheckpointMachine, round_, examples=40, steps=35)
