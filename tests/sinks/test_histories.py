"""Every history of attempts, crashes and notices shows the records of the completed checkpoints, each once.

A model of what a runtime and a coordinator may do to one subtask: checkpoints complete, are aborted or subsumed;
notices come late or never; an attempt dies at any step of what it does to the file system; one that was replaced goes
on without knowing it, in its restore as well.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.schemas.errors import PenstockError
from penstock.sinks import FileSink, staging
from penstock.sinks.staging import HIDDEN
from tests.machines import explore
from tests.rounds import rounds

from .driving import hidden, opened, records, snapshot, write

STEPS = frozenset({"replace", "fsync", "unlink", "listdir"})
NEVER = 1_000
crash_points = st.one_of(st.just(NEVER), st.integers(0, 8))

BYSTANDERS = [
    "flights.out.10.e1.a1.0123456789ab.jsonl",
    "flights.out-1.1.e1.a1.0123456789ab.jsonl",
    "flights2.out.1.e1.a1.0123456789ab.jsonl",
    "flights.out.1.e999.a1.0123456789ab.jsonl",
    "somebody-elses",
]


class Crash(BaseException):
    """SIGKILL: nobody catches it, nothing is cleaned up."""


class CrashingOs:
    """``os`` for a process that dies just before its n-th step on the file system."""

    def __init__(self, steps_left: int) -> None:
        self.steps_left = steps_left

    def __getattr__(self, name: str) -> Any:
        if name in STEPS:
            if self.steps_left == 0:
                raise Crash
            self.steps_left -= 1
        return getattr(os, name)


@dataclass
class Attempt:
    sink: FileSink
    token: tuple[int, int]
    restores: tuple[int, bytes] | None
    position: int
    """In the source: the next record to be written."""
    is_open: bool = False
    notices: deque[tuple[str, int]] = field(default_factory=deque)
    begun: set[int] = field(default_factory=set)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="histories-"))
        (self.folder / HIDDEN).mkdir()
        for name in BYSTANDERS:
            (self.folder / HIDDEN / name).touch()
        self.token = (1, 0)
        self.next_id = 0
        self.completed: tuple[int, bytes, int] | None = None
        """The last one: id, state, position."""
        self.pending: dict[int, tuple[bytes, int]] = {}
        """Acked by the present attempt: state, position."""
        self.shown = 0
        """Records below it have to be visible: somebody was told, or has restored."""
        self.zombies: list[Attempt] = []
        self.dead: list[Attempt] = []
        self.current = self.begin()
        self.start(self.current, NEVER)

    # ---- what a runtime does

    def begin(self, *, new_epoch: bool = False, same_token: bool = False) -> Attempt:
        if not same_token:
            self.token = (self.token[0] + new_epoch, self.token[1] + 1)
        restores, position = None, 0
        if self.completed is not None:
            restores, position = self.completed[:2], self.completed[2]
        self.pending.clear()
        return Attempt(FileSink(self.folder), self.token, restores, position)

    def start(self, attempt: Attempt, crash_after: int) -> None:
        with mock.patch.object(staging, "os", CrashingOs(crash_after)):
            epoch, number = attempt.token
            opened(self.folder, number, epoch, sink=attempt.sink)
            if attempt.restores is not None:
                attempt.sink.restore_state(*attempt.restores)
        attempt.is_open = True
        if attempt is self.current:
            self.shown = max(self.shown, attempt.position)

    def replaced(self, **how: bool) -> None:
        """A successor that has not been opened yet."""
        self.current = self.begin(**how)

    def perform(self, crash_after: int, action: Any) -> bool:
        """Whether the present attempt lived through it."""
        try:
            with mock.patch.object(staging, "os", CrashingOs(crash_after)):
                action()
        except Crash:
            self.dead.append(self.current)
            self.replaced()
            return False
        return True

    @rule(crash_after=crash_points, new_epoch=st.booleans())
    @precondition(lambda self: not self.current.is_open)
    def opens(self, crash_after: int, new_epoch: bool) -> None:
        try:
            self.start(self.current, crash_after)
        except Crash:
            self.dead.append(self.current)
            self.replaced(new_epoch=new_epoch)

    @rule(count=st.integers(1, 3))
    @precondition(lambda self: self.current.is_open)
    def writes(self, count: int) -> None:
        first = self.current.position
        write(self.current.sink, *range(first, first + count))
        self.current.position += count

    @rule(crash_after=crash_points)
    @precondition(lambda self: self.current.is_open)
    def takes_a_snapshot(self, crash_after: int) -> None:
        n = self.next_id = self.next_id + 1
        attempt, taken = self.current, []
        if self.perform(crash_after, lambda: taken.append(snapshot(attempt.sink, n))):
            self.pending[n] = taken[0], attempt.position
            attempt.begun.add(n)

    @rule(data=st.data(), savepoints=st.booleans())
    @precondition(lambda self: self.pending)
    def a_checkpoint_completes(self, data: st.DataObject, savepoints: bool) -> None:
        n = data.draw(st.sampled_from(sorted(self.pending)))
        state, position = self.pending.pop(n)
        if self.completed is None or n > self.completed[0]:
            self.completed = n, state, position
            self.current.notices.append(("complete", n))
        if not savepoints:
            for older in [m for m in self.pending if m < n]:
                del self.pending[older]
                self.current.notices.append(("abort", older))

    @rule(data=st.data())
    @precondition(lambda self: self.pending)
    def a_checkpoint_is_aborted(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from(sorted(self.pending)))
        del self.pending[n]
        self.current.notices.append(("abort", n))

    @rule(crash_after=crash_points)
    @precondition(lambda self: self.current.is_open and self.current.notices)
    def is_told(self, crash_after: int) -> None:
        kind, n = self.current.notices[0]
        told = self.completed
        if self.perform(crash_after, lambda: self.tell(self.current)) and kind == "complete":
            assert told is not None
            self.shown = max(self.shown, told[2] if told[0] == n else 0)

    def tell(self, attempt: Attempt) -> None:
        kind, n = attempt.notices.popleft()
        if kind == "complete":
            attempt.sink.notify_checkpoint_complete(n)
        else:
            attempt.sink.notify_checkpoint_aborted(n, "declined")

    @rule(new_epoch=st.booleans())
    def dies(self, new_epoch: bool) -> None:
        self.dead.append(self.current)
        self.replaced(new_epoch=new_epoch)

    @rule(same_token=st.booleans())
    @precondition(lambda self: self.current.is_open)
    def fails_and_begins_again_in_place(self, same_token: bool) -> None:
        """With the same token when only the generation is new."""
        self.current.sink.close()
        self.replaced(same_token=same_token)

    @rule(new_epoch=st.booleans())
    def freezes_and_is_replaced(self, new_epoch: bool) -> None:
        self.zombies.append(self.current)
        self.replaced(new_epoch=new_epoch)

    @rule(data=st.data(), does=st.sampled_from(["starts", "writes", "snapshot", "told", "closes"]))
    @precondition(lambda self: self.zombies)
    def a_zombie_thaws(self, data: st.DataObject, does: str) -> None:
        zombie = data.draw(st.sampled_from(self.zombies))
        try:
            if not zombie.is_open:
                self.start(zombie, data.draw(crash_points))
            elif does == "writes":
                write(zombie.sink, zombie.position)
                zombie.position += 1
            elif does == "snapshot":
                self.next_id += 1
                snapshot(zombie.sink, self.next_id)
            elif does == "told" and zombie.notices:
                self.tell(zombie)
            elif does == "closes":
                zombie.sink.close()
                self.zombies.remove(zombie)
        except Crash:
            self.zombies.remove(zombie)
            self.dead.append(zombie)
        except (OSError, PenstockError):  # its file is gone, or it has failed already: it may fail as it likes
            zombie.sink.close()
            self.zombies.remove(zombie)

    # ---- what must hold

    @invariant()
    def what_is_visible_belongs_to_completed_checkpoints_and_is_there_once(self) -> None:
        seen = records(self.folder)
        assert len(seen) == len(set(seen)), f"twice: {seen}"
        end = 0 if self.completed is None else self.completed[2]
        assert seen == list(range(len(seen))), f"a hole: {seen}"
        assert self.shown <= len(seen) <= end, (self.shown, seen, end)

    @invariant()
    def what_is_others_is_left_alone(self) -> None:
        assert set(BYSTANDERS) <= set(hidden(self.folder))

    def teardown(self) -> None:
        """The job comes to its end: everything is visible, and nothing but what is others' is left."""
        try:
            if not self.current.is_open:
                self.start(self.current, NEVER)
            write(self.current.sink, self.current.position)
            n, position = self.next_id + 1, self.current.position + 1
            state = snapshot(self.current.sink, n)
            self.current.notices.clear()
            self.current.notices.append(("complete", n))
            self.tell(self.current)
            assert records(self.folder) == list(range(position))
            assert self.current.sink.settled
            for attempt in [*self.zombies, *self.dead]:
                attempt.sink.close()
            self.completed = n, state, position
            self.replaced(new_epoch=True)
            self.start(self.current, NEVER)
            assert records(self.folder) == list(range(position))
            # An attempt that dies in open may leave the empty file that it tried its rename with.
            assert [name for name in hidden(self.folder) if not name.endswith(".probe")] == sorted(BYSTANDERS)
        finally:
            for attempt in [*self.zombies, *self.dead, self.current]:
                attempt.sink.close()
            shutil.rmtree(self.folder)


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_in_every_history_the_records_of_completed_checkpoints_are_visible_once(round_: int) -> None:
    explore(Histories, round_, examples=60, steps=30)
