"""What a job of thousands costs its coordinator: work done for each record does not grow with their number."""

from __future__ import annotations

from dataclasses import fields

import pytest

from penstock.coordinator.protocol.state import Slot, SlotPhase
from penstock.schemas.acks import RunStarted
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import OperatorSettings

from .driver import Script

MANY = 200
LOOKS_MAX = 12
"""For one record, however many subtasks there are."""


class Watched(Slot):
    """Counts how often anybody asks for the phase of any of them."""

    looks = 0

    @property  # type: ignore[override]
    def phase(self) -> SlotPhase:
        Watched.looks += 1
        return Slot.phase.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @phase.setter
    def phase(self, phase: SlotPhase) -> None:
        Slot.phase.__set__(self, phase)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_invariants(monkeypatch: pytest.MonkeyPatch) -> None:
    """They look at everybody."""
    monkeypatch.setattr("tests.coordinator.protocol.driver.check_invariants", lambda job: None)


def watch(script: Script) -> None:
    slots = script.epoch.slots
    for subtask, slot in slots.items():
        slots[subtask] = Watched(**{field.name: getattr(slot, field.name) for field in fields(Slot)})


def looks() -> int:
    """Since the last time."""
    count, Watched.looks = Watched.looks, 0
    return count


@pytest.mark.parametrize("under_way", [False, True])
def test_a_heartbeat_and_an_ack_are_read_without_a_look_at_the_others(under_way: bool) -> None:
    script = Script.running(OperatorSettings("op", MANY))
    n = script.trigger() if under_way else -1
    watch(script)
    looks()
    for index in range(0, MANY - 1, 20):
        task = script.task(SubtaskId("op", index))
        script.read(task.ack(n) if under_way else task.heartbeat())
        assert looks() <= LOOKS_MAX


def test_a_subtask_registers_without_a_look_at_those_that_have() -> None:
    script = Script.begun(OperatorSettings("op", MANY))
    script.read(RunStarted("run-1", "here"))
    watch(script)
    looks()
    for index in range(MANY - 1):
        script.hello(SubtaskId("op", index))
        assert looks() <= LOOKS_MAX
    assert script.job.registry.incomplete_since is not None
    script.hello(SubtaskId("op", MANY - 1))
    assert script.job.registry.incomplete_since is None
